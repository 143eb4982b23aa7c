// Safetensors files: what is written comes back bit for bit, and no damaged or foreign header gets past the reader.
#include <cstring>

#include "demi/core/memory.h"
#include "demi/nn/safetensors.h"
#include "devices.h"
#include "files.h"

namespace demi::test {
namespace {

// A safetensors file made by hand: the header's text, then the data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

void expect_same(const nn::Safetensors& a, const nn::Safetensors& b) {
  EXPECT_EQ(a.metadata, b.metadata);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, t] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(name)) << name;
    const Tensor& other = b.tensors.at(name);
    EXPECT_EQ(t.dtype(), other.dtype()) << name;
    EXPECT_EQ(t.shape(), other.shape()) << name;
    EXPECT_TRUE(bytes_of(t) == bytes_of(other)) << name;
  }
}

TEST(Safetensors, KeepsEveryDtypeAndShapeBitForBit) {
  nn::Safetensors content;
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8}) {
    const std::string name(name_of(dtype));
    Tensor t = Tensor::empty({3, 5}, dtype);  // 15 elements: odd ends of one byte and two
    for (size_t i = 0; i < t.bytes(); ++i) static_cast<char*>(t.mutable_raw())[i] = static_cast<char>(i * 37 + 200);
    content.tensors[name] = t;
    content.tensors[name + " view"] = t.narrow(1, 1);
    content.tensors[name + " empty"] = Tensor::empty({5, 0, 7}, dtype);
    content.tensors[name + " scalar"] = t.flatten().narrow(4, 1).reshape(Shape{});
  }
  content.metadata = {{"text", "quote \" backslash \\ newline \n umlaut \xc3\xa4"}, {"", ""}};
  const Folder folder;
  nn::write_safetensors(folder / "a", content);
  const nn::Safetensors back = nn::read_safetensors(folder / "a");
  EXPECT_TRUE(back.checksummed);
  expect_same(content, back);
  nn::write_safetensors(folder / "b", {});
  expect_same({}, nn::read_safetensors(folder / "b"));
  EXPECT_EQ(folder.files(), 2u);
}

TEST(Safetensors, OnlyEmptyTensors) {
  const Folder folder;
  nn::Safetensors content;
  content.tensors["a"] = Tensor::empty({1000, 0}, DType::F64);
  content.tensors["b"] = Tensor::empty({0}, DType::U8);
  nn::write_safetensors(folder / "a", content);
  expect_same(content, nn::read_safetensors(folder / "a"));
}

TEST(Safetensors, TextThatIsNoUtf8DoesNotPreventWriting) {
  const Folder folder;
  nn::write_safetensors(folder / "a", {{}, {{"path", "caf\xe9"}}, false});
  EXPECT_EQ(nn::read_safetensors(folder / "a").metadata.at("path"), "caf\xef\xbf\xbd");
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const nn::Safetensors file = nn::read_safetensors(fs::path(DEMI_SOURCE_DIR) / "tests/golden/op_cases.safetensors");
  EXPECT_FALSE(file.checksummed);
  EXPECT_GT(file.tensors.size(), 100u);
  for (const auto& [name, t] : file.tensors) EXPECT_TRUE(t.defined()) << name;
}

TEST(Safetensors, ReadsSpacesAnyOrderAndNoMetadata) {
  const Folder folder;
  const std::string header =
      R"( { "b" : {"shape": [2], "data_offsets": [4, 8], "dtype": "F16"}, "a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]} }   )";
  write_file(folder / "a", file_of(header, std::string("\x01\x02\x03\x04\x00\x3c\x00\xc0", 8)));
  const nn::Safetensors file = nn::read_safetensors(folder / "a");
  EXPECT_EQ(values_of(file.tensors.at("a")), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(values_of(file.tensors.at("b")), (std::vector<double>{1, -2}));
}

// Headers that promise what the file does not hold. None may allocate more than the file is long.
TEST(Safetensors, RefusesHeadersThatDoNotFit) {
  const Folder folder;
  const fs::path path = folder / "a";
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::vector<std::pair<std::string, std::string>> bad{
      {tensor("F32", "[4]", "[0,16]"), "reaches to byte 16 of 8"},
      {tensor("F32", "[4]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[1]", "[0,8]"), "room for 8"},
      {tensor("F32", "[2]", "[8,0]"), "byte 0"},
      {tensor("F32", "[-2]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[4611686018427387904]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[4294967296,4294967296]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), "impossible shape"},
      {tensor("F32", "[2]", "[18446744073709551608,18446744073709551615]"), "reaches to byte"},
      {tensor("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "9 axes"},
      {tensor("F8_E4M3", "[8]", "[0,8]"), "F8_E4M3"},
      {tensor("F32", "[2.5]", "[0,8]"), "not of whole numbers"},
      {tensor("F32", "[1]", "[0,4]"), "4 bytes follow the last tensor"},
      {tensor("F32", "[1]", "[4,8]"), "belong to no tensor"},
      {R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "belong to two tensors"},
      {R"({"w":{"dtype":"F32","shape":[2]}})", "data_offsets"},
      {R"({"w":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", "header is damaged"},
      {R"({"w":[1,2]})", "header is damaged"},
      {R"([])", "header is damaged"},
      {R"({"w":{"dtype":"F32","shape":"x","data_offsets":[0,8]}})", "header is damaged"},
      {R"({"__metadata__":{"a":1}})", "header is damaged"},
      {std::string(100000, '['), "header is damaged"},
  };
  for (const auto& [header, part] : bad) {
    write_file(path, file_of(header, std::string(8, 'x')));
    memory::reset_peak(Device::cpu());
    const size_t before = memory::statistics(Device::cpu()).current;
    const std::string error = error_of([&] { nn::read_safetensors(path); });
    EXPECT_NE(error.find(part), std::string::npos) << header.substr(0, 100) << ": " << error;
    EXPECT_NE(error.find(path.string()), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LE(memory::statistics(Device::cpu()).peak, before + 4096) << header.substr(0, 100);
  }
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{19}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string file = file_of("{}", std::string(16, ' '));
    std::memcpy(file.data(), &length, 8);
    write_file(path, file);
    EXPECT_NE(error_of([&] { nn::read_safetensors(path); }).find("header of"), std::string::npos) << length;
  }
  EXPECT_NE(error_of([&] { nn::read_safetensors(folder / "nowhere"); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { nn::read_safetensors(folder / "."); }).find("not a file"), std::string::npos);
}

TEST(Safetensors, SaysBeforehandWhatCannotBeWritten) {
  const Folder folder;
  fs::create_directory(folder / "sub");
  write_file(folder / "file", "kept");
  EXPECT_NE(error_of([&] { nn::check_writable(folder / "none/a"); }).find("No such file or directory"),
            std::string::npos);
  EXPECT_NE(error_of([&] { nn::check_writable(folder / "sub"); }).find("it is a folder"), std::string::npos);
  EXPECT_NE(error_of([&] { nn::check_writable(folder / "file/a"); }).find("Not a directory"), std::string::npos);
  EXPECT_EQ(error_of([&] { nn::check_writable(folder / "file"); }), "");
  EXPECT_EQ(error_of([&] { nn::check_writable(folder / "new"); }), "");
  EXPECT_EQ(read_file(folder / "file"), "kept");
  EXPECT_EQ(folder.files(), 2u);
}

}  // namespace
}  // namespace demi::test
