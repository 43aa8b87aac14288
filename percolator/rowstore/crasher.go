package rowstore

// Crasher is implemented by stores that can do, for tests, what a crash of their
// server does: deferred batches that are not durable yet are lost, and the
// incarnation changes.
type Crasher interface {
	Crash()
}
