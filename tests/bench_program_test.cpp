// demi_bench as people run it: names, what goes wrong, what the JSON holds.
#include <regex>

#include "programs.h"

namespace demi::test {
namespace {

class BenchProgram : public Programs {
 protected:
  nlohmann::json json_of(const Words& arguments) {
    const Result r = run("demi_bench", Words{"--device=" + GetParam(), "--benchmark_out=out.json",
                                             "--benchmark_out_format=json", "--benchmark_min_time=0.001"} +
                                           arguments);
    EXPECT_EQ(r.code, 0) << r.err << r.out;
    return nlohmann::json::parse(read_file(work_ / "out.json"), nullptr, false);
  }
  Words names(const Words& arguments) {
    const Result r = run("demi_bench", Words{"--list", "--device=" + GetParam()} + arguments);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    Words lines;
    std::istringstream in(r.out);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
};
DEMI_ON_ALL_DEVICES(BenchProgram);

TEST_P(BenchProgram, NamesFollowTheGrammar) {
  const std::regex grammar(
      R"([a-z][a-z0-9_]*/(fp32|tf32|fp16|bf16)/[1-9]\d*(x[1-9]\d*)*(_k\d+_r\d+_s\d+)?(_odd)?/(cold|warm))");
  for (const char* set : {"default", "resnet50", "sweep", "odd", "all", "quick"}) {
    const Words list = names({std::string("--set=") + set});
    EXPECT_GT(list.size(), 10u) << set;
    for (const std::string& name : list) EXPECT_TRUE(std::regex_match(name, grammar)) << name;
    EXPECT_EQ(std::set<std::string>(list.begin(), list.end()).size(), list.size()) << "a name twice in " << set;
  }
  // Each op of the library is in the set that people run first.
  std::set<std::string> ops;
  for (const std::string& name : names({})) ops.insert(name.substr(0, name.find('/')));
  for (const char* op : {"copy",
                         "cast",
                         "cast_to_fp32",
                         "add",
                         "axpy",
                         "bias",
                         "relu",
                         "relu_backward",
                         "batch_norm",
                         "batch_norm_relu",
                         "batch_norm_add_relu",
                         "batch_norm_backward",
                         "batch_norm_relu_backward",
                         "batch_norm_add_relu_backward",
                         "max_pool",
                         "max_pool_backward",
                         "avg_pool",
                         "avg_pool_backward",
                         "global_avg_pool",
                         "global_avg_pool_backward",
                         "cross_entropy",
                         "cross_entropy_backward",
                         "sum",
                         "sum_rows",
                         "amax",
                         "finite_check",
                         "sgd",
                         "adam",
                         "augment",
                         "matmul",
                         "linear",
                         "conv_fprop",
                         "conv_fprop_bias",
                         "conv_dgrad",
                         "conv_wgrad",
                         "conv_bn_relu"})
    EXPECT_TRUE(ops.contains(op)) << op;
}

TEST_P(BenchProgram, ListsWhatIsAskedFor) {
  EXPECT_EQ(names({"--ops=copy", "--shape=4x5", "--dtypes=bf16,fp32", "--benchmark_filter=warm$"}),
            (Words{"copy/fp32/4x5/warm", "copy/bf16/4x5/warm"}));
  EXPECT_EQ(names({"--ops=add,copy", "--shape=7_odd", "--dtypes=fp16", "--benchmark_filter=-^copy|cold"}),
            (Words{"add/fp16/7_odd/warm"}));
  EXPECT_EQ(names({"--ops=conv_wgrad", "--shape=2x8x8x3_k5_r4_s3", "--dtypes=fp32", "--benchmark_filter=warm"}),
            (Words{"conv_wgrad/fp32/2x8x8x3_k5_r4_s3/warm"}));
}

TEST_P(BenchProgram, JsonHoldsWhatTheReportReads) {
  const auto json = json_of({"--set=quick", "--ops=add,linear,sgd,conv_bn_relu", "--dtypes=fp16,fp32"});
  ASSERT_TRUE(json.is_object());
  const auto& context = json["context"];
  for (const char* key : {"card", "demi_commit", "command", "l2_bytes", "ceiling_copy_GBps", "ceiling_fp32_TFLOPs",
                          "ceiling_fp16_TFLOPs"})
    EXPECT_TRUE(context.contains(key) && context[key].is_string() && context[key] != "") << key;
  EXPECT_FALSE(context.contains("ceiling_bf16_TFLOPs")) << "no case needs it";
  EXPECT_NE(context["command"].get<std::string>().find("--set=quick"), std::string::npos);
  EXPECT_GT(std::stod(context["ceiling_copy_GBps"].get<std::string>()), 1);
  ASSERT_GE(json["benchmarks"].size(), 8u);
  for (const auto& b : json["benchmarks"]) {
    const std::string name = b["name"];
    for (const char* key : {"real_time", "median_us", "spread_percent", "bytes", "flops", "GB/s", "TFLOP/s",
                            "ceiling_percent", "floor_us", "relative_error", "host_us"})
      EXPECT_TRUE(b.contains(key) && b[key].is_number()) << key << " of " << name;
    EXPECT_EQ(b["time_unit"], "us");
    EXPECT_TRUE(name.ends_with("/manual_time")) << name;
    const double us = b["median_us"], bytes = b["bytes"];
    EXPECT_GT(us, 0) << name;
    EXPECT_NEAR(b["GB/s"].get<double>(), bytes / us * 1e-3, 1e-3 * bytes / us * 1e-3) << name;
    EXPECT_NEAR(b["ceiling_percent"].get<double>(), 100 * b["floor_us"].get<double>() / us, 0.1) << name;
    EXPECT_GT(b["flops"], 0) << name;
    // 16 bits round the result by up to 2^-11, FP32 by next to nothing.
    const double error = b["relative_error"];
    EXPECT_LE(error, name.find("/fp16/") != std::string::npos ? 2e-3 : 1e-5) << name;
    if (name.find("/fp16/") != std::string::npos) {
      EXPECT_GT(error, 1e-5) << name;
    }
    if (GetParam() == "cuda" && (name.starts_with("linear") || name.starts_with("conv"))) {
      EXPECT_NE(b["label"].get<std::string>().find(name.starts_with("conv") ? "cuDNN" : "cuBLASLt"), std::string::npos);
    }
  }
}

TEST_P(BenchProgram, BytesAndOperationsAreThoseOfTheFormula) {
  const auto json = json_of({"--ops=conv_fprop", "--shape=2x8x8x16_k32_r3_s2", "--dtypes=fp16"});
  const auto& b = json["benchmarks"][0];
  EXPECT_EQ(b["flops"], 2.0 * 2 * 4 * 4 * 32 * 3 * 3 * 16);
  EXPECT_EQ(b["bytes"], 2.0 * (2 * 8 * 8 * 16 + 32 * 3 * 3 * 16 + 2 * 4 * 4 * 32));
  const auto sgd = json_of({"--ops=sgd", "--shape=1000", "--dtypes=bf16"});
  EXPECT_EQ(sgd["benchmarks"][0]["bytes"], 20e3);
}

TEST_P(BenchProgram, OddShapesRun) {
  const auto json = json_of({"--ops=add,relu_backward,batch_norm_relu_backward,bias,sum_rows", "--shape=3x5x7_odd"});
  EXPECT_GE(json["benchmarks"].size(), 15u);
  for (const auto& b : json["benchmarks"]) EXPECT_FALSE(b.contains("error_occurred")) << b["name"];
}

class BenchBadInput : public BenchProgram {};
INSTANTIATE_TEST_SUITE_P(, BenchBadInput, ::testing::Values("cpu"), device_name);

TEST_P(BenchBadInput, IsOneClearLine) {
  const std::vector<std::pair<Words, Words>> cases{
      {{"--nope"}, {"--nope", "--help"}},
      {{"extra"}, {"extra", "--help"}},
      {{"--benchmark_nope=1"}, {"--benchmark_nope=1", "--help"}},
      {{"--benchmark_format=xml"}, {"--benchmark_format=xml", "json"}},
      {{"--benchmark_out=x.json", "--benchmark_out_format=yaml"}, {"--benchmark_out_format=yaml", "json"}},
      {{"--benchmark_out=none/x.json"}, {"--benchmark_out=none/x.json", "cannot write"}},
      {{"--benchmark_out="}, {"--benchmark_out=", "cannot write"}},
      {{"--benchmark_repetitions=0"}, {"--benchmark_repetitions=0", "from 1"}},
      {{"--benchmark_repetitions=-3"}, {"--benchmark_repetitions=-3", "from 1"}},
      {{"--benchmark_repetitions=many"}, {"--benchmark_repetitions=many", "from 1"}},
      {{"--benchmark_min_time=-1"}, {"--benchmark_min_time=-1", "seconds"}},
      {{"--benchmark_min_time=long"}, {"--benchmark_min_time=long", "seconds"}},
      {{"--benchmark_min_time=1min"}, {"--benchmark_min_time=1min", "seconds"}},
      {{"--benchmark_min_time=inf"}, {"--benchmark_min_time=inf", "seconds"}},
      {{"--set=large"}, {"'large'", "default", "quick"}},
      {{"--ops=foo"}, {"unknown op 'foo'", "conv_fprop", "adam"}},
      {{"--ops=add,foo"}, {"unknown op 'foo'"}},
      {{"--ops", "add", "copy"}, {"argument copy", "--help"}},
      {{"--dtypes=fp8"}, {"unknown dtype 'fp8'", "fp32, tf32, fp16 or bf16"}},
      {{"--device=gpu"}, {"'gpu'"}},
      {{"--device=cuda:99"}, {"no", "device"}},
      {{"--benchmark_filter=nothing_is_called_so"}, {"nothing_is_called_so", "none of", "--list"}},
      {{"--benchmark_filter=(["}, {"([", "no regular expression"}},
      {{"--shape=4x4"}, {"--shape", "--ops"}},
      {{"--ops=add", "--dtypes=tf32"}, {"nothing to measure", "tf32"}},
      {{"--ops=add", "--shape=4xfour"}, {"'4xfour'", "add", "'four'", "16777216"}},
      {{"--ops=add", "--shape=0"}, {"'0'", "add"}},
      {{"--ops=add", "--shape="}, {"--shape"}},
      {{"--ops=add", "--shape=-4"}, {"'-4'"}},
      {{"--ops=add", "--shape=99999999999"}, {"99999999999", "2^34"}},
      {{"--ops=add", "--shape=99999999999999999999"}, {"99999999999999999999"}},
      {{"--ops=add", "--shape=1x1x1x1x1x1x1x1x1"}, {"at most 8"}},
      {{"--ops=bias", "--shape=16"}, {"bias", "two extents"}},
      {{"--ops=batch_norm", "--shape=1x64"}, {"batch_norm", "one row"}},
      {{"--ops=max_pool", "--shape=16x16"}, {"max_pool", "N x H x W x C"}},
      {{"--ops=avg_pool", "--shape=1x1x1x8"}, {"avg_pool", "kernel"}},
      {{"--ops=augment", "--shape=8x32x32x4"}, {"augment", "3 channels"}},
      {{"--ops=cross_entropy", "--shape=8"}, {"cross_entropy", "classes", "256x10"}},
      {{"--ops=sgd", "--shape=8x8"}, {"sgd", "weights"}},
      {{"--ops=matmul", "--shape=8x8"}, {"matmul", "m x n x k", "8192x8192x8192"}},
      {{"--ops=conv_fprop", "--shape=8x32x32x64"}, {"conv_fprop", "_k128_r3_s2"}},
      {{"--ops=conv_fprop", "--shape=8x32x32x64_k64_r0_s1"}, {"conv_fprop", "'0'"}},
      {{"--ops=conv_fprop", "--shape=8x2x2x64_k64_r9_s1_x"}, {"conv_fprop"}},
      {{"--ops=add,matmul", "--shape=8x8"}, {"matmul", "m x n x k"}},
  };
  for (const auto& [arguments, parts] : cases) {
    expect_failure("demi_bench", arguments, parts);
    if (HasFailure()) break;
  }
}

TEST_P(BenchBadInput, NoMemoryIsSaidAndFails) {
  const Result r = run("demi_bench", {"--device=cpu", "--ops=relu", "--shape=200000000", "--dtypes=fp32"},
                       {.environment = {"DEMI_MEMORY_LIMIT=300MiB"}});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE((r.out + r.err).find("has no room for"), std::string::npos) << r.out << r.err;
}

TEST_P(BenchBadInput, TheCpuIsSaid) {
  const Words one{"--ops=relu", "--shape=1000", "--benchmark_min_time=0.001s"};
  const Result r = run("demi_bench", Words{"--device=cpu"} + one);
  EXPECT_EQ(r.code, 0);
  EXPECT_TRUE(r.err.starts_with("demi_bench: no GPU: ")) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  if (cuda_is_missing()) {
    const Result automatic = run("demi_bench", one + Words{"--benchmark_format=json"});
    EXPECT_TRUE(automatic.err.starts_with("demi_bench: no GPU: none was found")) << automatic.err;
    EXPECT_TRUE(nlohmann::json::accept(automatic.out)) << "standard output is JSON alone: " << automatic.out;
  }
}

TEST_P(BenchBadInput, HelpSaysItAll) {
  const Result r = run("demi_bench", {"--help"});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.err, "");
  for (const char* part : {"--set", "--ops", "--dtypes", "--shape", "--device", "--list", "--benchmark_filter",
                           "--benchmark_out", "--benchmark_repetitions", "All flags of Google Benchmark"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace demi::test
