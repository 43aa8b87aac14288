package main

import (
	"os"
	"testing"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
)

// asProgram makes TestMain be the program, with the arguments that follow.
const asProgram = "SHOP_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	testserver.Main(m, tikvtest.Leaks()...)
}
