package engineload_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvferry/kvferry/internal/engineload"
)

func ExampleParse() {
	text := `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 3.0
vllm:num_requests_waiting{engine="0",model_name="llama"} 0.0
`
	load, err := engineload.Parse(strings.NewReader(text), time.Now())
	if err != nil {
		panic(err)
	}
	fmt.Println(load)
	// Output: vllm: running 3, waiting 0, KV cache unknown
}
