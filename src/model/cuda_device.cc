// Opens NVIDIA GPUs. ggml's CUDA backend, libkvant_cuda and the driver are loaded only when a GPU is asked
// for.
#include <ggml-backend.h>

#include <bit>
#include <charconv>

#include "device/cuda/page/page_permutation.h"
#include "format/format.h"
#include "model/compute_device.h"
#include "model/cuda_driver.h"
#include "model/cuda_library.h"
#include "model/ggml_cuda.h"
#include "model/shared_library.h"

namespace kvant {
namespace {

using BackendPointer = std::shared_ptr<ggml_backend>;

constexpr int kLeastCapability = 8;  // the major number of the compute capability: A100, RTX 30 and newer

class CudaPages final : public PageDevice {
 public:
  CudaPages(std::shared_ptr<const CudaDriver> driver, const PageLibrary& library, std::string name,
            int device, BackendPointer backend)
      : driver_(std::move(driver)),
        library_(library),
        name_(std::move(name)),
        device_(device),
        backend_(std::move(backend)) {}
  ~CudaPages() override {
    if (context_ == nullptr) return;
    enter();
    if (own_stream_ != nullptr) driver_->destroy_stream(own_stream_);
    backend_.reset();
    driver_->release_context(device_);
  }

  Status start() {
    int failure = driver_->retain_context(&context_, device_);
    if (failure == 0) failure = driver_->set_context(context_);
    stream_ = stream_of(backend_.get());
    if (failure == 0 && stream_ == nullptr) {
      failure = driver_->create_stream(&own_stream_, CudaDriver::kNonBlocking);
      stream_ = own_stream_;
    }
    if (failure != 0) return error("{} can't be used: {}", name_, driver_->text(failure));
    return {};
  }
  // Returns whether ggml's graphs run on the same stream.
  bool shares_stream() const { return own_stream_ == nullptr; }

  const std::string& name() const override { return name_; }
  const PageLibrary& library() const override { return library_; }
  kvant_stream stream() const override { return stream_; }
  void enter() const override { driver_->set_context(context_); }

  void* allocate(std::size_t bytes) override {
    enter();
    CudaDriver::Address memory = 0;
    return driver_->allocate(&memory, bytes) == 0 ? std::bit_cast<void*>(memory) : nullptr;
  }
  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    enter();
    driver_->free(address(memory));
  }
  std::int64_t free_bytes() const override {
    enter();
    std::size_t free = 0, total = 0;
    return driver_->memory_info(&free, &total) == 0 ? static_cast<std::int64_t>(free) : 0;
  }

  void upload(void* to, const void* from, std::size_t bytes) override {
    note(driver_->upload(address(to), from, bytes, stream_));
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    note(driver_->download(to, address(from), bytes, stream_));
    note(driver_->synchronize_stream(stream_));
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    note(driver_->copy(address(to), address(from), bytes, stream_));
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t row_bytes, std::size_t n_rows) override {
    CudaDriver::Copy2d rows{};
    rows.from_type = rows.to_type = CudaDriver::kDevice;
    rows.from_device = address(from);
    rows.from_pitch = from_stride;
    rows.to_device = address(to);
    rows.to_pitch = to_stride;
    rows.width = row_bytes;
    rows.height = n_rows;
    note(driver_->copy_2d(&rows, stream_));
  }
  void clear_rows(void* rows, std::size_t stride, std::size_t row_bytes, std::size_t n_rows) override {
    note(driver_->set_2d(address(rows), stride, 0, row_bytes, n_rows, stream_));
  }

  void page_to_host(const std::string& format, Side side, int d, const std::byte* page,
                    std::byte* canonical) const override {
    cuda::page_from_device(device_format(format), side, d, find_format(format)->page_bytes(d), page,
                           canonical);
  }
  void page_from_host(const std::string& format, Side side, int d, const std::byte* canonical,
                      std::byte* page) const override {
    cuda::page_to_device(device_format(format), side, d, find_format(format)->page_bytes(d), canonical, page);
  }

  Status finish() override {
    note(driver_->synchronize_stream(stream_));
    if (failure_ == 0) return {};
    return error("{} failed: {}", name_, driver_->text(std::exchange(failure_, 0)));
  }

  const CudaDriver& driver() const { return *driver_; }
  void note(int failure) {
    if (failure_ == 0) failure_ = failure;
  }

 private:
  static cuda::DeviceFormat device_format(const std::string& name) {
    cuda::DeviceFormat format;
    KVANT_CHECK(cuda::find_device_format(name, format), "a page of a format that the library doesn't read");
    return format;
  }
  static CudaDriver::Address address(const void* memory) {
    return reinterpret_cast<CudaDriver::Address>(memory);
  }

  std::shared_ptr<const CudaDriver> driver_;
  PageLibrary library_;
  std::string name_;
  int device_;
  CudaDriver::Context context_ = nullptr;
  BackendPointer backend_;  // the backend must outlive the users of its stream
  CudaDriver::Stream stream_ = nullptr, own_stream_ = nullptr;
  int failure_ = 0;  // the first error of the driver since finish(), as a number
};

class CudaDevice final : public ComputeDevice {
 public:
  CudaDevice(std::shared_ptr<CudaPages> pages, BackendPointer backend, ggml_backend_dev_t device)
      : cuda_(std::move(pages)),
        pages_(cuda_),
        backend_(std::move(backend)),
        graph_done_(ggml_backend_event_new(device)),
        pages_done_(ggml_backend_event_new(device)) {}
  ~CudaDevice() override {
    ggml_backend_event_free(graph_done_);
    ggml_backend_event_free(pages_done_);
  }

  ggml_backend* backend() const override { return backend_.get(); }
  const std::shared_ptr<PageDevice>& pages() const override { return pages_; }
  void pages_after_graph() override {
    if (cuda_->shares_stream()) return;
    ggml_backend_event_record(graph_done_, backend_.get());
    cuda_->note(cuda_->driver().wait_event(cuda_->stream(), event_of(graph_done_), 0));
  }
  void graph_after_pages() override {
    if (cuda_->shares_stream()) return;
    cuda_->note(cuda_->driver().record_event(event_of(pages_done_), cuda_->stream()));
    ggml_backend_event_wait(backend_.get(), pages_done_);
  }

 private:
  std::shared_ptr<CudaPages> cuda_;
  std::shared_ptr<PageDevice> pages_;
  BackendPointer backend_;
  ggml_backend_event_t graph_done_, pages_done_;
};

// Returns the number in "cuda:N", 0 for "cuda", and -1 for any other name.
int gpu_number(const std::string& name) {
  if (name == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  int number = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, number);
  return read.ec == std::errc() && read.ptr == end ? number : -1;
}

}  // namespace

Result<std::shared_ptr<ComputeDevice>> open_device(const std::string& name) {
  const int number = gpu_number(name);
  if (number < 0) return error("'{}' is not a device: use cpu, cuda, or cuda:N for GPU N", name);
  const auto driver = CudaDriver::load();
  if (!driver.ok()) return driver.error();
  const CudaDriver& d = **driver;
  int n = 0, device = 0, major = 0, minor = 0;
  d.device_count(&n);
  if (n == 0) {
    return error(
        "--device {} needs an NVIDIA GPU, but the driver shows none here (CUDA_VISIBLE_DEVICES may hide "
        "them): use --device cpu",
        name);
  }
  if (number >= n)
    return error(
        "--device {}: {}", name,
        n == 1 ? "the GPU here is cuda:0" : fmt::format("the GPUs here are cuda:0 to cuda:{}", n - 1));
  char model[128] = "";
  d.device_get(&device, number);
  d.device_name(model, sizeof model, device);
  d.device_attribute(&major, CudaDriver::kCapabilityMajor, device);
  d.device_attribute(&minor, CudaDriver::kCapabilityMinor, device);
  if (major < kLeastCapability) {
    return error(
        "--device {}: kvant's kernels are for NVIDIA GPUs of compute capability 8.0 and newer, such as A100 "
        "and RTX 30, and the {} has {}.{}: use --device cpu",
        name, model, major, minor);
  }
  const auto library = load_page_library();
  if (!library.ok()) return library.error();
  const auto registered = load_ggml_cuda(program_places());
  if (!registered.ok()) return registered.error();
  if (number >= static_cast<int>(ggml_backend_reg_dev_count(*registered)))
    return error("--device {}: ggml's CUDA backend doesn't see that GPU", name);
  ggml_backend_dev_t ggml_device = ggml_backend_reg_dev_get(*registered, number);
  const BackendPointer backend(ggml_backend_dev_init(ggml_device, nullptr), [](ggml_backend_t b) {
    if (b != nullptr) ggml_backend_free(b);
  });
  if (backend == nullptr) return error("--device {}: ggml's CUDA backend can't use the {}", name, model);
  auto pages = std::make_shared<CudaPages>(*driver, *library, fmt::format("cuda:{} ({})", number, model),
                                           device, backend);
  KVANT_RETURN_IF_ERROR(pages->start());
  return std::shared_ptr<ComputeDevice>(std::make_shared<CudaDevice>(std::move(pages), backend, ggml_device));
}

}  // namespace kvant
