// A growable array of trivial elements aligned to cache lines; contents are kept only until it grows.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace blockgtq::cpu {

template <typename T>
class AlignedBuffer {
 public:
  static constexpr std::align_val_t kAlign{64};

  /// At least `count` elements; new memory is zeroed, and old contents are lost when it grows.
  T* Reserve(size_t count) {
    if (count > size_) {
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), kAlign)));
      std::uninitialized_fill_n(data_.get(), count, T{});
      size_ = count;
    }
    return data_.get();
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace blockgtq::cpu
