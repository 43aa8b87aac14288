package all_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/percolate-go/percolate/backends/all"
	_ "github.com/percolate-go/percolate/examples/boltstore"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What is said about a URL shows no part of a password in it: of a store that takes none, such as one on
// this machine, and of a URL that is spoiled at any place, so that a part of the password would be taken
// for something else.
func TestErrorsShowNoPassword(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	ended, cancel := context.WithCancel(t.Context())
	cancel() // what can be read asks no server
	for _, scheme := range rowstore.Schemes() {
		// Postgres makes a pool before it looks at the context, so each spoiled URL takes long: its own package has such tests.
		if scheme == "postgres" || scheme == "postgresql" {
			continue
		}
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			failed := 0
			judge := func(url string) {
				s, err := rowstore.Open(ended, url)
				if err == nil {
					require.NoError(t, s.Close())
					return
				}
				failed++
				for _, part := range []string{"hunt", "unter", "ter2"} {
					require.NotContains(t, err.Error(), part, url)
				}
			}
			for _, behind := range []string{"@db:1/shop", "?tls_key=x"} {
				before := scheme + "://shop:"
				url := before + password + behind
				judge(url)
				for i := len(before); i <= len(url); i++ {
					judge(url[:i])
					if i < len(url) {
						judge(url[:i] + url[i+1:])
					}
					for _, more := range []string{":", "@", "/", "?", "#", "&", "%zz", "[", "\x00", "?x=", "?cache=", "&oracle="} {
						judge(url[:i] + more + url[i:])
					}
				}
			}
			judge(scheme + "://db?password=" + password + "&nothing=1")
			judge(scheme + "://db?" + password)
			judge(scheme + "://db?" + password + "=1&" + password + "=2")
			require.Greater(t, failed, 100)
		})
	}
}
