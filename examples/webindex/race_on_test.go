//go:build race

package main

// raceEnabled tells that the race detector is on. It makes transactions over
// thousands of rows twenty times as expensive, so tests take less input then.
const raceEnabled = true
