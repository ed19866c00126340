// Package repair
package repair
