package rowstore

// Wrapper is implemented by a Store over a Store that leaves calls as they are
// (one that counts them, say). [Unwrap] looks through it.
type Wrapper interface {
	Unwrap() Store
}

// Decorator is implemented by a Store over a Store that changes calls: it merges, routes,
// delays or loses them. Unwrap never looks through a Decorator, because an ability of the
// store beneath would go round what the Decorator does. A Decorator lists what it offers
// itself; [Treatment] makes that list from the abilities of the store beneath. A Decorator
// has an ability only if the store beneath has it, unless it can do without.
type Decorator interface {
	Store
	// Abilities returns what the Decorator offers, the same each time. Make it once, with
	// the Decorator.
	Abilities() Abilities
}

// Unwrap finds the optional ability T (Grouper, Deferrer, OracleProvider, ...) of a store:
// that of s itself if it has it, else that of the store that s wraps. It stops at a
// Decorator, which has the abilities that it lists and no others. [AbilitiesOf] finds all
// of them at once.
//
//	if g, ok := rowstore.Unwrap[rowstore.Grouper](store); ok { ... }
func Unwrap[T any](s Store) (T, bool) {
	for s != nil {
		if d, ok := s.(Decorator); ok {
			return abilityOf[T](d.Abilities())
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
