package certs_test

import (
	"fmt"

	"github.com/kvferry/kvferry/internal/certs"
)

func Example() {
	ca, err := certs.NewCA("dev", 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	pair, err := ca.Issue("us-east", "node-a", "10.0.0.7")
	if err != nil {
		fmt.Println(err)
		return
	}
	region, node, err := certs.Identity(pair.Cert)
	fmt.Println(region, node, err)
	// Output: us-east node-a <nil>
}
