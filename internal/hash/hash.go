// Package hash has the hashes that programs agree upon: by what they store, and by what
// they send to each other. None of them ever changes.
package hash

// Start is the hash of nothing: the offset basis of FNV-1a with 64 bits.
const Start = 14695981039346656037

const fnvPrime = 1099511628211

// String continues a hash with a string (FNV-1a).
func String(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// Mix lets each bit of the result depend on all bits of x. It is the last step of
// MurmurHash3 with 64 bits.
func Mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
