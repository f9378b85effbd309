// TensorFlow's status as an object, and exceptions as statuses.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>

#include "ops/glue/attributes.h"
#include "ops/glue/cuda_library.h"
#include "ops/glue/tf_c_api.h"

namespace grace {

// Becomes tf.errors.ResourceExhaustedError.
struct Exhausted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  ~Status() { TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() const { return status_; }

  void Check() const {
    const TF_Code code = TF_GetCode(status_);
    if (code == TF_RESOURCE_EXHAUSTED) throw Exhausted(TF_Message(status_));
    if (code != TF_OK) throw Invalid(TF_Message(status_));
  }

  // Describes the exception that is being handled.
  void FromException() {
    try {
      throw;
    } catch (const Invalid& error) {
      TF_SetStatus(status_, TF_INVALID_ARGUMENT, error.what());
    } catch (const Exhausted& error) {
      TF_SetStatus(status_, TF_RESOURCE_EXHAUSTED, error.what());
    } catch (const Unimplemented& error) {
      TF_SetStatus(status_, TF_UNIMPLEMENTED, error.what());
    } catch (const std::bad_alloc&) {
      TF_SetStatus(status_, TF_RESOURCE_EXHAUSTED, "There is not enough memory.");
    } catch (const std::exception& error) {
      TF_SetStatus(status_, TF_INTERNAL, error.what());
    }
  }

 private:
  TF_Status* status_;
};

}  // namespace grace
