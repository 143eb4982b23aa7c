#include "demi/nn/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace demi::nn {
namespace {

using Json = nlohmann::json;

constexpr const char* kChecksum = "demi_checksum";
constexpr const char* kNoChecksum = "0000000000000000";
constexpr uint64_t kMostElements = uint64_t{1} << 60;  // of a shape with a 0 in it: the others must not wrap around

struct Name {
  const char* name;
  DType dtype;
};
constexpr std::array<Name, 7> kNames{{{"F32", DType::F32},
                                      {"F16", DType::F16},
                                      {"BF16", DType::BF16},
                                      {"F64", DType::F64},
                                      {"I32", DType::I32},
                                      {"I64", DType::I64},
                                      {"U8", DType::U8}}};

// A fast 64-bit hash against accidents, not against people: eight bytes a round, multiplied and folded.
uint64_t hash(uint64_t h, const char* data, size_t bytes) {
  auto round = [&h](uint64_t word) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  };
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    round(word);
  }
  for (; i < bytes; ++i) round(static_cast<unsigned char>(data[i]) + 0x100u);
  return h;
}

// What is open here is closed on every way out.
class File {
 public:
  File(const std::filesystem::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  bool write(const void* data, size_t bytes) const {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t n = ::write(fd_, at, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += n;
      bytes -= static_cast<size_t>(n);
    }
    return true;
  }

 private:
  int fd_;
};

class Mapping {
 public:
  Mapping(int fd, size_t bytes) : bytes_(bytes), data_(::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0)) {}
  ~Mapping() {
    if (ok()) ::munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  const char* data() const { return static_cast<const char*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

Tensor read_tensor(const std::string& file, const std::string& name, const Json& entry, const char* data,
                   size_t available) {
  const std::string dtype = entry.at("dtype").get<std::string>();
  const auto known = std::find_if(kNames.begin(), kNames.end(), [&](const Name& n) { return dtype == n.name; });
  DEMI_CHECK(known != kNames.end(), "{}: tensor '{}' has dtype {}, which demi does not read", file, name, dtype);
  const auto begin = entry.at("data_offsets").at(0).get<uint64_t>(),
             end = entry.at("data_offsets").at(1).get<uint64_t>();
  DEMI_CHECK(begin <= end && end <= available,
             "{}: tensor '{}' reaches to byte {} of {}: the file is cut short or damaged", file, name, end, available);
  uint64_t bytes = size_of(known->dtype);
  const Json& shape = entry.at("shape");
  DEMI_CHECK(std::all_of(shape.begin(), shape.end(), [](const Json& d) { return d.is_number_integer(); }),
             "{}: tensor '{}' has a shape that is not of whole numbers: the header is damaged", file, name);
  const std::vector<int64_t> dims = shape.get<std::vector<int64_t>>();
  DEMI_CHECK(dims.size() <= Shape::kMaxRank, "{}: tensor '{}' has {} axes, demi's have at most {}", file, name,
             dims.size(), Shape::kMaxRank);
  const bool empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
  const uint64_t most = empty ? kMostElements : available;
  for (int64_t d : dims) {  // checked as it grows: a corrupt extent must not wrap around or allocate
    if (d == 0) continue;
    DEMI_CHECK(d > 0 && bytes <= most / static_cast<uint64_t>(d), "{}: tensor '{}' has an impossible shape", file,
               name);
    bytes *= static_cast<uint64_t>(d);
  }
  if (empty) bytes = 0;
  DEMI_CHECK(bytes == end - begin, "{}: tensor '{}' of {} bytes has room for {}: the header is damaged", file, name,
             bytes, end - begin);
  Tensor t = Tensor::empty(Shape(dims), known->dtype);
  if (bytes > 0) std::memcpy(t.mutable_raw(), data + begin, bytes);
  return t;
}

// Where a file is written before it gets its name.
std::filesystem::path partial(const std::filesystem::path& path) { return path.string() + ".partial"; }

// The file that a path names, behind symbolic links. Renaming onto a device, a pipe or a folder would replace it.
std::filesystem::path target_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path target =
      std::filesystem::is_symlink(path, error) ? std::filesystem::weakly_canonical(path, error) : path;
  const auto status = std::filesystem::status(target, error);
  DEMI_CHECK(!std::filesystem::is_directory(status), "{}: cannot be written: it is a folder, not a file",
             path.string());
  DEMI_CHECK(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
             "{}: cannot be written: it is a device or a pipe, not a file", path.string());
  return target;
}

// Tensors must fill the data without gaps and without sharing bytes: anything else is damage that would go unseen.
void check_layout(const std::string& file, const Json& json, size_t available) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : json.items())
    if (name != "__metadata__")
      ranges.emplace_back(entry.at("data_offsets").at(0).get<uint64_t>(),
                          entry.at("data_offsets").at(1).get<uint64_t>());
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    DEMI_CHECK(begin == at, "{}: bytes {} to {} of the data {}: the header is damaged", file, std::min(begin, at),
               std::max(begin, at), begin < at ? "belong to two tensors" : "belong to no tensor");
    at = end;
  }
  DEMI_CHECK(at == available, "{}: {} bytes follow the last tensor: the file is damaged", file, available - at);
}

}  // namespace

Safetensors read_safetensors(const std::filesystem::path& path) {
  const std::string file = path.string();
  const File in(path, O_RDONLY | O_NONBLOCK);  // opening a pipe must not wait for a writer
  DEMI_CHECK(in.fd() >= 0, "{}: {}", file, std::strerror(errno));
  struct stat info {};
  DEMI_CHECK(::fstat(in.fd(), &info) == 0 && S_ISREG(info.st_mode), "{}: not a file", file);
  const auto size = static_cast<size_t>(info.st_size);
  DEMI_CHECK(size >= 8, "{}: {} bytes are no safetensors file", file, size);
  const Mapping map(in.fd(), size);
  DEMI_CHECK(map.ok(), "{}: {}", file, std::strerror(errno));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, map.data(), 8);
  DEMI_CHECK(header_bytes >= 2 && header_bytes <= size - 8,
             "{}: a header of {} bytes in a file of {}: cut short, damaged or no safetensors file", file, header_bytes,
             size);
  std::string header(map.data() + 8, header_bytes);
  const char* data = map.data() + 8 + header_bytes;
  const size_t available = size - 8 - header_bytes;

  Safetensors content;
  try {
    const Json json = Json::parse(header);
    DEMI_CHECK(json.is_object(), "{}: the header is damaged or no safetensors header", file);
    if (json.contains("__metadata__"))
      content.metadata = json.at("__metadata__").get<std::map<std::string, std::string>>();
    if (const auto sum = content.metadata.find(kChecksum); sum != content.metadata.end()) {
      const size_t at = header.find(std::string("\"") + kChecksum + "\":\"" + sum->second);
      DEMI_CHECK(at != std::string::npos && sum->second.size() == 16, "{}: the header is damaged", file);
      header.replace(header.find(sum->second, at), 16, kNoChecksum);
      const uint64_t found = hash(hash(0, header.data(), header.size()), data, available);
      DEMI_CHECK(fmt::format("{:016x}", found) == sum->second,
                 "{}: the checksum does not match: the file is cut short or damaged", file);
      content.metadata.erase(sum);
      content.checksummed = true;
    }
    for (const auto& [name, entry] : json.items())
      if (name != "__metadata__") content.tensors[name] = read_tensor(file, name, entry, data, available);
    check_layout(file, json, available);
  } catch (const Json::exception& e) {
    fail("{}: the header is damaged or no safetensors header ({})", file, e.what());
  }
  return content;
}

void write_safetensors(const std::filesystem::path& path, const Safetensors& content) {
  Json json = Json::object();
  json["__metadata__"] = content.metadata;
  json["__metadata__"][kChecksum] = kNoChecksum;
  uint64_t offset = 0;
  std::vector<Tensor> tensors;
  for (const auto& [name, t] : content.tensors) {
    const Name* known = std::find_if(kNames.begin(), kNames.end(), [&](const Name& n) { return n.dtype == t.dtype(); });
    json[name] = {
        {"dtype", known->name}, {"shape", t.shape().to_vector()}, {"data_offsets", {offset, offset + t.bytes()}}};
    offset += t.bytes();
    tensors.push_back(t.to(Device::cpu()));
  }
  // Text that is no UTF-8 (a path, perhaps) must not make the file impossible to write.
  std::string header = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  header.append((8 - header.size() % 8) % 8, ' ');  // tensors start at a multiple of 8
  uint64_t sum = hash(0, header.data(), header.size());
  // The reader hashes all data as one run; whole words only, or a tensor's odd end would be hashed in another way.
  std::string data(offset, '\0');
  offset = 0;
  for (const Tensor& t : tensors) {
    if (t.bytes() > 0) std::memcpy(data.data() + offset, t.raw(), t.bytes());
    offset += t.bytes();
  }
  sum = hash(sum, data.data(), data.size());
  const std::string mark = std::string("\"") + kChecksum + "\":\"";
  header.replace(header.find(mark) + mark.size(), 16, fmt::format("{:016x}", sum));

  const std::filesystem::path target = target_of(path), temporary = partial(target);
  const uint64_t header_bytes = header.size();
  bool ok = false;
  int error = 0;
  {
    const File out(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    ok = out.fd() >= 0 && out.write(&header_bytes, 8) && out.write(header.data(), header.size()) &&
         out.write(data.data(), data.size()) && ::fsync(out.fd()) == 0;
    error = errno;
  }
  if (ok && ::rename(temporary.c_str(), target.c_str()) == 0) {
    // The rename itself must survive a power cut too.
    const File folder(target.has_parent_path() ? target.parent_path() : ".", O_RDONLY | O_DIRECTORY);
    if (folder.fd() >= 0) (void)::fsync(folder.fd());
    return;
  }
  if (ok) error = errno;
  ::unlink(temporary.c_str());
  fail("{}: cannot be written: {}; what was there before is unchanged", path.string(), std::strerror(error));
}

void check_writable(const std::filesystem::path& path) {
  const std::filesystem::path temporary = partial(target_of(path));
  const File probe(temporary, O_WRONLY | O_CREAT);
  DEMI_CHECK(probe.fd() >= 0, "{}: cannot be written: {}", path.string(), std::strerror(errno));
  ::unlink(temporary.c_str());
}

}  // namespace demi::nn
