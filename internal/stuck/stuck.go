// Package stuck has the parked runs that a call for many of them can do nothing for. It goes on behind them, so that none of them holds up
// the others, and names the first few when it has ended.
package stuck

import (
	"errors"
	"fmt"
	"strings"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// mostNamed is how many runs are named.
const mostNamed = 3

// RunsError has the parked runs for which nothing could be done. It names the first few.
type RunsError struct {
	n     int
	first []error
}

// Take returns the error that ends the call: nil for one of this run alone, which it counts. Such a run has names that are longer than this
// program takes, or records that cannot be read.
func (s *RunsError) Take(run *admin.Parked, err error) error {
	if !errors.Is(err, percolator.ErrTooLarge) && !errors.Is(err, percolator.ErrCorrupt) && !errors.Is(err, percolator.ErrInvalid) {
		return err
	}
	if s.n++; s.n > mostNamed {
		return nil
	}
	if run.Unreadable {
		err = fmt.Errorf("%w: %s", err, run.Error)
	}
	s.first = append(s.first, fmt.Errorf("%v %v: %w", run.Observer.Word(), run.Cell, err))
	return nil
}

// Len is how many there are.
func (s *RunsError) Len() int { return s.n }

func (s *RunsError) Error() string {
	var said []string
	for _, err := range s.first {
		said = append(said, err.Error())
	}
	if more := s.n - len(s.first); more > 0 {
		said = append(said, fmt.Sprintf("and %d others", more))
	}
	return strings.Join(said, "; ")
}

func (s *RunsError) Unwrap() []error { return s.first }
