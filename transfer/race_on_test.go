//go:build race

package transfer_test

// raceEnabled has tests move less: the race detector makes them ten times as slow.
const raceEnabled = true
