// Conversions from and to float16 by integer arithmetic. They serve backends whose instruction set
// does not promise instructions for that.
//
// A backend includes it in its namespace; it includes nothing and has no guard.

GRACE_INLINE H ToFloat16(F v) {
  const U key = And(AsU(v), SetU(kMagnitude)), shifted = ShiftRight<13>(key);
  // Between the exponents of float and float16 lie 112.
  const U rounding = Add(SetU(0xfff - (112u << 23)), And(shifted, SetU(1)));
  const U normal = ShiftRight<13>(Add(key, rounding));
  // Below 2^-14 a sum with 1/2 rounds to multiples of 2^-24, the denormals of float16.
  const U small = Sub(AsU(Add(AsF(key), Set(0.5f))), AsU(Set(0.5f)));
  const U nan = Or(SetU(0x7e00), And(shifted, SetU(0x3ff)));
  U half = Blend(Greater(SetU(0x38800000), key), small, normal);
  half = Blend(Greater(key, SetU(0x477fffff)), SetU(0x7c00), half);
  half = Blend(Greater(key, SetU(kInfinity)), nan, half);
  return Narrow(Or(half, And(ShiftRight<16>(AsU(v)), SetU(0x8000))));
}

GRACE_INLINE F FromFloat16(H h) {
  const U wide = Widen(h), key = ShiftLeft<13>(And(wide, SetU(0x7fff)));
  const U rebias = SetU(112u << 23), special = SetU(0x0f800000);
  // A denormal of float16 is so many times 2^-24: its bits below those of 2^-14, minus 2^-14.
  const F least = AsF(SetU(113u << 23));
  const U small = AsU(Sub(AsF(Add(key, AsU(least))), least));
  const M is_special = Greater(key, Sub(special, SetU(1)));
  U bits = Add(key, rebias);
  bits = Blend(is_special, Add(bits, rebias), bits);
  bits = Blend(Greater(SetU(0x00800000), key), small, bits);
  const U quiet = Blend(Greater(key, special), SetU(0x00400000), SetU(0));
  return AsF(Or(Or(bits, quiet), ShiftLeft<16>(And(wide, SetU(0x8000)))));
}
