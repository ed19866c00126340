// Package queue measures how long a fetch waits behind other fetches on the source's link, in a simulator and over real
// QUIC, and compares it with the laws of queueing theory.
package queue
