// Small experiments that show what mixed precision does and why; docs/learn has a chapter for each.
//
//   amp_lessons [NAME] [--device auto|cpu|cuda] [--data DIR|synthetic] [--out DIR] [--seed N]
#include "demi/examples/amp_lessons/lesson.h"

namespace demi::lessons {

void numbers(Lesson& lesson);
void sums(Lesson& lesson);
void lost_updates(Lesson& lesson);
void underflow(Lesson& lesson);
void dynamic_scale(Lesson& lesson);
void autocast(Lesson& lesson);
void ladder(Lesson& lesson);
void memory(Lesson& lesson);

// In the order to take them. A lesson's file starts with the same question.
constexpr Entry kLessons[] = {
    {"numbers", "What can a number of 16 bits hold?", numbers},
    {"sums", "Why are sums held in FP32?", sums},
    {"lost_updates", "Why keep FP32 weights when the network runs in FP16?", lost_updates},
    {"underflow", "Why is the loss scaled, and when need it not be?", underflow},
    {"dynamic_scale", "How does the loss scale find its value, and what does a skipped step leave behind?",
     dynamic_scale},
    {"autocast", "Which operation runs in which precision, and why?", autocast},
    {"ladder", "What does each part of mixed precision add?", ladder},
    {"memory", "Where do the bytes go, and what does FP16 save?", memory},
};

}  // namespace demi::lessons

int main(int argc, char** argv) { return demi::lessons::run_program(argc, argv, demi::lessons::kLessons); }
