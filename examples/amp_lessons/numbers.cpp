// numbers: What can a number of 16 bits hold?
//
// Predictions, for FP16 (1 sign, 5 exponent and 10 fraction bits):
//   1e-7 does not vanish: it becomes the subnormal 1.19e-7. 2e-8 does vanish.
//   65,519 fits, as 65,504. 65,520 is infinity.
#include "demi/core/dtype.h"
#include "demi/examples/amp_lessons/lesson.h"

namespace demi::lessons {

void numbers(Lesson& lesson) {
  lesson.section("At the edges of FP16");
  Table table({"number", "FP16"});
  for (const double x : {2e-8, 1e-7, 65519.0, 65520.0}) table.row(x, fmt::format("{:.6g}", float(Half(float(x)))));
  lesson.show(table);
  lesson.predict("1e-7 becomes the subnormal 2 x 2^-24 = 1.19e-7", float(Half(1e-7f)) == 0x1p-23f);
  lesson.predict("2e-8 becomes 0", float(Half(2e-8f)) == 0);
}

}  // namespace demi::lessons
