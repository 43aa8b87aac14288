package rowstore

// Wrapper is implemented by a Store over a Store that leaves calls as they are
// (one that counts them, say). [Unwrap] looks through it.
type Wrapper interface {
	Unwrap() Store
}

// Decorator is implemented by a Store over a Store that changes calls: merges,
// routes, delays or loses them. An optional interface that such a wrapper does
// not know about would go round it, so Unwrap never looks through a Decorator;
// the Decorator offers each optional interface itself, when what it wraps does.
type Decorator interface {
	Store
	// Offer is given a pointer to a variable of an interface type, such as
	// *Grouper. If the Decorator has that ability it sets the variable and returns
	// true.
	Offer(target any) bool
}

// Unwrap finds the optional ability T (Grouper, Deferrer, OracleProvider, ...) of
// a store: that of s itself if it has it, else that of the store that s wraps, as
// far as a Decorator does not hide it.
//
//	if g, ok := rowstore.Unwrap[rowstore.Grouper](store); ok { ... }
func Unwrap[T any](s Store) (T, bool) {
	for s != nil {
		if d, ok := s.(Decorator); ok {
			var t T
			ok = d.Offer(&t)
			return t, ok
		}
		if t, ok := s.(T); ok {
			return t, true
		}
		w, ok := s.(Wrapper)
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var none T
	return none, false
}
