/* The native kernels' interface: pointers, sizes and a thread count, and nothing of Python or a framework.
 *
 * Every call gives the bytes of the NumPy reference (hgc_horovod/core), whatever the path and the number of
 * threads. Encoding and decoding neither throw nor print; a calling thread keeps some scratch memory. Arrays
 * hold n entries unless a comment says otherwise and are aligned to their type. docs/wire-format.md defines
 * the payload. */
#pragma once

#include <stdint.h>

#define HGC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum hgc_dtype { HGC_FLOAT32 = 0, HGC_FLOAT16 = 1, HGC_BFLOAT16 = 2 };

enum hgc_value_kind {
  HGC_VALUE_FLOAT32 = 0,
  HGC_VALUE_BFLOAT16 = 1,
  HGC_VALUE_SIGN_MEAN = 2,
  HGC_VALUE_GEOMETRIC = 3
};

enum hgc_status {
  HGC_OK = 0,
  HGC_NON_FINITE = 1, /* a value is or would become a NaN or an infinity; the step was taken back */
  HGC_DAMAGED = 2,    /* the payload is not one that an encoder writes; nothing was written */
  HGC_NO_MEMORY = 3,  /* scratch memory could not be had; a step was taken back */
  HGC_DWARFED = 4     /* see hgc_step.guard */
};

/* What a payload's header says: k slots for n entries, and how values are written. */
typedef struct {
  int64_t n, k;
  int32_t method, value_kind, bits;
} hgc_format;

/* One step of one tensor. */
typedef struct {
  const void* gradient;
  const void* weight; /* or NULL: no weight decay */
  int32_t gradient_dtype, weight_dtype;
  float weight_decay;
  float momentum;                  /* 0: none */
  int32_t nesterov, masking, keep; /* flags */
  float multiplier;                /* out: what the gradient was multiplied by */
  double factor;                   /* the gradient is multiplied by it, 1 or, say, the inverse of a scale */
  double clip, sqrt_world;         /* and its L2 norm then limited to clip / sqrt_world; clip 0: it is not */
  float* residual;
  float* velocity;     /* the momentum buffer, or NULL where momentum is 0 */
  float* masked;       /* (k,) out: what masking cleared of the velocity, in order; or NULL */
  int64_t sent;        /* out: how many entries the payload carries, at most k */
  float hint, caution; /* in, out: what one step tells the next of its threshold; 0 to begin with */
  uint32_t turn;       /* in, out: the same */
  int32_t scans;       /* out: how often the tensor was looked through for its largest entries */
  int32_t guard; /* flag: where the gradient is so large that subtracting it again would leave little of what
                    is kept, return HGC_DWARFED and touch nothing */
  int32_t path, threads;
} hgc_step;

/* The version of this interface: raised with every change of it. */
#define HGC_VERSION 4
HGC_API int32_t hgc_version(void);

/* The size of a payload in bytes. */
HGC_API int64_t hgc_payload_bytes(const hgc_format* format);

/* Encode one step into `payload`, uint8 (hgc_payload_bytes,). */
HGC_API int hgc_encode(const hgc_format* format, hgc_step* step, uint8_t* payload);

/* The format that the payload at the head of `bytes` bytes has; HGC_DAMAGED where none begins there. */
HGC_API int hgc_read_format(const uint8_t* payload, int64_t bytes, hgc_format* format);

/* A payload of zeros, as large as a step's. */
HGC_API void hgc_encode_nothing(const hgc_format* format, uint8_t* payload);

/* Take back the step that wrote `payload` of n entries, to float32 rounding. `step` is as it was for the
 * encoding but for `factor`, which is the step's multiplier. HGC_DAMAGED: it is another tensor's payload. */
HGC_API int hgc_undo(const uint8_t* payload, int64_t bytes, int64_t n, hgc_step* step);

/* Write the sum of the values of `count` payloads of n entries, each times `factor`, in the order in which
 * they stand one behind the other in `bytes` bytes. */
HGC_API int hgc_decode_sum(const uint8_t* payloads, int64_t bytes, int64_t count, int64_t n, float factor,
                           void* out, int32_t out_dtype, int32_t path, int32_t threads);

/* Dense bit fields: n codes of `bits` (1 to 8) bits each, packed into ceil(n * bits / 8) bytes; and
 * out[i] += scales[i / bucket] * levels[code i], with 2^bits levels. */
HGC_API int hgc_pack_codes(const uint8_t* codes, int64_t n, int32_t bits, uint8_t* packed, int32_t threads);
HGC_API int hgc_add_codes(const uint8_t* packed, int64_t n, int32_t bits, const float* levels,
                          const float* scales, int64_t bucket, float* out, int32_t path, int32_t threads);

/* 9-bit codes of powers of two, exponent * 2 + sign, packed into ceil(n * 9 / 8) bytes; and
 * out[i] += factor * the float32 of that exponent, sign and mantissa 0. */
HGC_API int hgc_pack_powers(const uint16_t* codes, int64_t n, uint8_t* packed, int32_t threads);
HGC_API int hgc_add_powers(const uint8_t* packed, int64_t n, float factor, float* out, int32_t path,
                           int32_t threads);

/* out[i, j] += (factor * left[a, i]) * right[a, j] for a = 0, 1, ..., rounded each; left is (atoms, rows),
 * right (atoms, columns), out (rows, columns). */
HGC_API int hgc_add_outer(const float* left, const float* right, int64_t atoms, int64_t rows, int64_t columns,
                          float factor, float* out, int32_t path, int32_t threads);

/* The passes that methods are made of: hgc_horovod/core/passes.py says what each of them gives. Values are
 * finite; bucket i are the entries [i * bucket, (i + 1) * bucket). All return HGC_OK or HGC_NO_MEMORY. */

/* A stream of uniform 32-bit words, one for each entry where entries are drawn. */
typedef struct {
  uint32_t key[2], step, stream, rank;
} hgc_draw;

HGC_API int hgc_draw_words(const hgc_draw* draw, int64_t n, uint32_t* words, int32_t path, int32_t threads);

/* One scale for each bucket: its largest magnitude, its L2 norm or its mean magnitude. */
enum hgc_scale { HGC_BUCKET_MAX = 0, HGC_BUCKET_NORM = 1, HGC_BUCKET_MEAN = 2 };
HGC_API int hgc_bucket_scales(const float* values, int64_t n, int64_t bucket, int32_t kind, float* scales,
                              int32_t path, int32_t threads);
HGC_API int hgc_class_means(const float* values, int64_t n, double means[2], int32_t path, int32_t threads);
HGC_API int hgc_sum_below(const float* values, int64_t n, float bound, int64_t* count, double* sum,
                          int32_t path, int32_t threads);

/* The moving averages of values and squares, new_* = decay * old + rest * now, which may be written over the
 * old ones, and in sums[0] the squared norm of the new mean, in sums[1] the sum of |new square - new mean^2|.
 */
HGC_API int hgc_moments(const float* values, int64_t n, float decay, float rest, const float* mean,
                        const float* square, float* new_mean, float* new_square, double sums[2], int32_t path,
                        int32_t threads);

/* 64 counts for each block; `first` is the half octave of the first bin. */
HGC_API int hgc_log_histograms(const float* values, int64_t n, int64_t block, int32_t first,
                               int64_t* histograms, int32_t path, int32_t threads);

/* Codes of entries; at most 127 edges, ascending. */
HGC_API int hgc_signs(const float* values, int64_t n, uint8_t* codes, int32_t path, int32_t threads);
HGC_API int hgc_round_levels(const float* values, int64_t n, const float* scales, int64_t bucket, int32_t top,
                             const hgc_draw* draw, uint8_t* codes, int32_t path, int32_t threads);
HGC_API int hgc_nearest_levels(const float* values, int64_t n, const float* scales, int64_t bucket,
                               const float* edges, int32_t edge_count, uint8_t* codes, int32_t path,
                               int32_t threads);
HGC_API int hgc_round_powers(const float* values, int64_t n, const hgc_draw* draw, uint16_t* codes,
                             int32_t path, int32_t threads);

/* Set bit i mod 64 of marks[i div 64] for each entry that is taken, uint64 (ceil(n / 64),), and counts[t],
 * int64 (threads,), to how many the part of thread t has. Then hgc_positions lists all of them in order,
 * given the same number of threads. */
HGC_API int hgc_mark_at_least(const float* values, int64_t n, const float* limits, int64_t block,
                              uint64_t* marks, int64_t* counts, int32_t path, int32_t threads);
HGC_API int hgc_mark_lucky(const float* values, int64_t n, float factor, const hgc_draw* draw,
                           uint64_t* marks, int64_t* counts, int32_t path, int32_t threads);
HGC_API int hgc_positions(const uint64_t* marks, int64_t n, const int64_t* counts, int64_t* positions,
                          int32_t threads);

/* The first half of hgc_encode, for what chooses entries otherwise: with `keep` the residual takes the step
 * up, and else it is written to `total`. Returns what hgc_encode does; sets the multiplier alone. */
HGC_API int hgc_accumulate(hgc_step* step, int64_t n, float* total);

/* The paths that this machine can run, best first, separated by commas. A path's number in the calls above is
 * its place in that list. */
HGC_API const char* hgc_paths(void);

#ifdef __cplusplus
}
#endif
