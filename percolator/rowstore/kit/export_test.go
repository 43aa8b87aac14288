package kit

// Waiting returns the number of requests that wait for the next draw and whose
// callers are there.
func Waiting(b *BatchOracle) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, r := range b.waiting {
		if !r.gone {
			n++
		}
	}
	return n
}

// Queued returns the number of requests that are kept for the next draw.
func Queued(b *BatchOracle) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// Listeners returns the number of listeners that a Hub knows.
func Listeners(h *Hub) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners)
}
