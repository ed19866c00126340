// Package transfer moves pages between the registered memories of two agents.
package transfer
