#include "slot.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace hgc_tensorflow {

namespace {

constexpr int64_t kGrain = 1 << 18;  // entries that are worth a thread of their own
enum Kind : uint8_t { kEncoded, kCopied };

}  // namespace

Rule::Rule(tf::OpKernelConstruction* context) {
  for (auto& [key, flag] : {std::pair{"nesterov", &nesterov}, {"masking", &masking}, {"keep", &keep}})
    OP_REQUIRES_OK(context, context->GetAttr(key, flag));
  for (auto& [key, number] : {std::pair{"momentum", &momentum}, {"clip", &clip}})
    OP_REQUIRES_OK(context, context->GetAttr(key, number));
  OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &name));
}

int32_t Rule::threads(tf::OpKernelContext* context, int64_t n) {
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  const int64_t most = workers ? workers->num_threads : 1;
  return int32_t(std::clamp<int64_t>(n / kGrain, 1, most));
}

absl::Status Rule::check(int status) const {
  switch (status) {
    case HGC_OK:
      return absl::OkStatus();
    case HGC_NO_MEMORY:
      return absl::ResourceExhaustedError("hgc_horovod: no memory for the gradient of " + name);
    case HGC_DAMAGED:
      return absl::DataLossError("hgc_horovod: a payload of " + name + " is damaged or another tensor's");
    default:
      return absl::InternalError("hgc_horovod: the kernels returned " + std::to_string(status));
  }
}

Slot::Slot(tf::OpKernelContext* context, const Rule& rule, int64_t n)
    : context_(context), rule_(rule), n_(n) {
  for (const char* const input : {"residual", "velocity", "step", "last"}) {
    const size_t which = vars_.size();
    const tf::Tensor* handle;
    tf::core::RefCountPtr<tf::Var> var;
    OP_REQUIRES_OK(context, context->input(input, &handle));
    OP_REQUIRES_OK(context, tf::LookupResource(context, handle->scalar<tf::ResourceHandle>()(), &var));
    locks_.push_back(std::make_unique<tf::mutex_lock>(*var->mu()));
    tf::Tensor& tensor = *var->tensor();
    const bool entries = (which == kResidual || which == kVelocity) && tensor.NumElements() > 0;
    OP_REQUIRES(context, var->is_initialized && (!entries || tensor.NumElements() == n),
                absl::InvalidArgumentError("hgc_horovod: what is kept of " + rule.name +
                                           " is not initialized, or of another size than its gradient"));
    if (which != kLast && !tensor.RefCountIsOne()) {  // somebody has read it and holds it still
      tf::Tensor copy;
      OP_REQUIRES_OK(context, context->allocate_temp(tensor.dtype(), tensor.shape(), &copy));
      std::memcpy(copy.data(), tensor.data(), tensor.TotalBytes());
      tensor = copy;
    }
    vars_.push_back(std::move(var));
  }
}

float* Slot::entries(Which which) const {
  tf::Tensor* tensor = vars_[which]->tensor();
  return tensor->NumElements() ? tensor->flat<float>().data() : nullptr;
}

bool Slot::belongs_to(int64_t rank, int64_t world) {
  int64_t* const owner = &step() + 1;
  if (owner[1] == 0) owner[0] = rank, owner[1] = world;
  return owner[0] == rank && owner[1] == world;
}

hgc_step Slot::prepare(const tf::Tensor& gradient, int32_t dtype) {
  hgc_step step{};
  step.gradient = gradient.data();
  step.gradient_dtype = dtype;
  step.momentum = rule_.momentum;
  step.nesterov = rule_.nesterov;
  step.masking = rule_.masking && rule_.momentum > 0;
  step.keep = rule_.keep;
  step.clip = double(rule_.clip);
  step.residual = entries(kResidual);
  step.velocity = entries(kVelocity);
  step.threads = Rule::threads(context_, n_);
  return step;
}

uint8_t* Slot::make_last(size_t bytes) {
  tf::Tensor& last = *vars_[kLast]->tensor();
  if (!last.RefCountIsOne() || size_t(last.NumElements()) != bytes)
    last = tf::Tensor(tf::DT_UINT8, {int64_t(bytes)});
  return last.flat<uint8_t>().data();
}

void Slot::remember(const tf::Tensor& payload, const hgc_step& step, const std::vector<float>& masked) {
  const size_t sent = size_t(payload.NumElements());
  const size_t cleared = step.masking ? size_t(step.sent) * sizeof(float) : 0;
  uint8_t* to = make_last(1 + sent + sizeof(float) + cleared);
  *to++ = kEncoded;
  std::memcpy(to, payload.data(), sent);
  std::memcpy(to + sent, &step.multiplier, sizeof(float));
  std::copy_n(reinterpret_cast<const uint8_t*>(masked.data()), cleared, to + sent + sizeof(float));
}

void Slot::remember(const std::vector<float>& kept) {
  uint8_t* to = make_last(1 + kept.size() * sizeof(float));
  *to++ = kCopied;
  std::copy_n(reinterpret_cast<const uint8_t*>(kept.data()), kept.size() * sizeof(float), to);
}

void Slot::forget() { make_last(0); }

void Slot::undo(const tf::Tensor& gradient, int32_t dtype) {
  const tf::Tensor& last = *vars_[kLast]->tensor();
  if (last.NumElements() == 0) return;
  const uint8_t* const from = last.flat<uint8_t>().data() + 1;
  const int64_t bytes = last.NumElements() - 1;
  const auto floats = [&](int64_t begin) {
    std::vector<float> read(size_t(bytes - begin) / sizeof(float));
    std::memcpy(read.data(), from + begin, read.size() * sizeof(float));
    return read;
  };
  if (from[-1] == kCopied) {
    restore(floats(0).data());
  } else {
    hgc_format format;
    OP_REQUIRES_OK(context_, rule_.check(hgc_read_format(from, bytes, &format)));
    const int64_t sent = hgc_payload_bytes(&format);
    std::vector<float> notes = floats(sent);
    hgc_step step = prepare(gradient, dtype);
    step.factor = double(notes[0]);
    step.masked = notes.data() + 1;
    OP_REQUIRES_OK(context_, rule_.check(hgc_undo(from, sent, n_, &step)));
  }
  forget();
  step()--;
}

std::vector<float> Slot::copy() const {
  std::vector<float> kept;
  for (const Which which : {kResidual, kVelocity})
    if (const float* from = entries(which)) kept.insert(kept.end(), from, from + n_);
  return kept;
}

void Slot::restore(const float* kept) {
  for (const Which which : {kResidual, kVelocity})
    if (float* to = entries(which)) {
      std::copy_n(kept, n_, to);
      kept += n_;
    }
}

}  // namespace hgc_tensorflow
