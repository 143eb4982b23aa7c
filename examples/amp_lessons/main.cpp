// Small experiments that show what mixed precision does and why; docs/learn has a chapter for each.
//
//   amp_lessons [NAME] [--device auto|cpu|cuda] [--data DIR|synthetic] [--out DIR] [--seed N]
#include "demi/examples/amp_lessons/lesson.h"

namespace demi::lessons {

void numbers(Lesson& lesson);
void dynamic_scale(Lesson& lesson);
void autocast(Lesson& lesson);
void ladder(Lesson& lesson);

// In the order to take them. A lesson's file starts with the same question.
constexpr Entry kLessons[] = {
    {"numbers", "What can a number of 16 bits hold?", numbers},
    {"dynamic_scale", "How does the loss scale find its value, and what does a skipped step leave behind?",
     dynamic_scale},
    {"autocast", "Which operation runs in which precision, and why?", autocast},
    {"ladder", "What does each part of mixed precision add?", ladder},
};

}  // namespace demi::lessons

int main(int argc, char** argv) { return demi::lessons::run_program(argc, argv, demi::lessons::kLessons); }
