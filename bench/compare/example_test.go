package compare_test

import (
	"fmt"
	"strings"

	"github.com/kvferry/kvferry/bench/compare"
)

func ExampleNames() {
	fmt.Println(strings.Join(compare.Names(), " "))
	// Output: kvferry quic-go-1 quic-go-8 tcp-tls http2 grpc-tls
}
