// Small experiments that show what mixed precision does and why; docs/learn has a chapter for each.
//
//   amp_lessons [NAME] [--device auto|cpu|cuda] [--data DIR|synthetic] [--out DIR] [--seed N]
#include "demi/examples/amp_lessons/lesson.h"

namespace demi::lessons {

void numbers(Lesson& lesson);
void sums(Lesson& lesson);
void lost_updates(Lesson& lesson);
void underflow(Lesson& lesson);

// In the order to take them. A lesson's file starts with the same question.
constexpr Entry kLessons[] = {
    {"numbers", "What can a number of 16 bits hold?", numbers},
    {"sums", "Why are sums held in FP32?", sums},
    {"lost_updates", "Why keep FP32 weights when the network runs in FP16?", lost_updates},
    {"underflow", "Why is the loss scaled, and when need it not be?", underflow},
};

}  // namespace demi::lessons

int main(int argc, char** argv) { return demi::lessons::run_program(argc, argv, demi::lessons::kLessons); }
