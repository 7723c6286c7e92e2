// What Horovod itself reduces in place of a compressed tensor: a few numbers.
#pragma once

namespace hgc_tensorflow {

enum Control {
  kScale,   // 1 on every rank; reduced: 1 for Average, the number of ranks for Sum
  kFirst,   // 1 on the compressor's first rank alone; reduced, it tells over how many ranks
  kBroken,  // 1 where the gradient is not finite
  kFailed,  // 1 where it could not be encoded
  kControl  // and behind them a digest of the settings, each entry -1 or 1
};

}  // namespace hgc_tensorflow
