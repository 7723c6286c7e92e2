// Included inside an anonymous namespace that defines HGC_TARGET, which has AVX2: blocks stand side by side
// in lanes of 64 bits, of which products read the lower halves only, so that the upper ones may hold
// anything.

HGC_TARGET void words(const hgc_draw& draw, uint32_t block, size_t n, uint32_t* words) {
  constexpr int kGroups = 2;  // of 4 blocks, to hide the products' latency
  static_assert(kWordGroup == 16 * kGroups, "");
  const __m256i first = _mm256_set1_epi64x(kPhiloxMultiplier[0]);
  const __m256i second = _mm256_set1_epi64x(kPhiloxMultiplier[1]);
  for (size_t at = 0; at < n; at += kWordGroup) {
    __m256i c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
    for (int g = 0; g < kGroups; g++) {
      const uint32_t base = block + uint32_t(at / 4) + uint32_t(4 * g);
      c0[g] = _mm256_add_epi64(_mm256_set1_epi64x(base), _mm256_set_epi64x(3, 2, 1, 0));
      c1[g] = _mm256_set1_epi64x(draw.step);
      c2[g] = _mm256_set1_epi64x(draw.stream);
      c3[g] = _mm256_set1_epi64x(draw.rank);
    }
    uint32_t k0 = draw.key[0], k1 = draw.key[1];
    for (int round = 0; round < kPhiloxRounds; round++) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
      for (int g = 0; g < kGroups; g++) {
        const __m256i p0 = _mm256_mul_epu32(c0[g], first), p1 = _mm256_mul_epu32(c2[g], second);
        c0[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[g]), key0);
        c2[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[g]), key1);
        c1[g] = p1;
        c3[g] = p0;
      }
      k0 += kPhiloxWeyl[0];
      k1 += kPhiloxWeyl[1];
    }
    for (int g = 0; g < kGroups; g++) {  // from lanes to the order of blocks
      const __m256i front = _mm256_blend_epi32(c0[g], _mm256_slli_epi64(c1[g], 32), 0xaa);
      const __m256i back = _mm256_blend_epi32(c2[g], _mm256_slli_epi64(c3[g], 32), 0xaa);
      const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
      __m256i* const to = reinterpret_cast<__m256i*>(words + at + size_t(16 * g));
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}
