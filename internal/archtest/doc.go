// Package archtest holds the tests of the repository's shape and has no code of its own.
//
// # Usage
//
//	go test ./internal/archtest/        # or: make dep-check
//
// TestImports holds the import table (rules_test.go): who may import whom, and why. A package of ours without a row fails,
// so a new one gets a row in the change that adds it. TestNames holds ARCHITECTURE.md and SECURITY.md to the code: every path, symbol and
// test that it names exists. TestSteps holds the Makefile and .ci/run to their word: that the race step detects races, that
// the fuzz step fuzzes.
//
// # Concurrency
//
// Nothing here is meant to be imported.
//
// # Limitations
//
// Imports are those of a build for the host's system with the default tags and with the tags "invariants" and "e2e".
package archtest
