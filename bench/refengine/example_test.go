package refengine_test

import (
	"context"
	"fmt"

	"github.com/kvferry/kvferry/bench/refengine"
)

// A turn is generated in one region and goes on in another: both engines name
// the same prefix alike.
func ExampleBlockKeys() {
	prompt := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	east := refengine.BlockKeys("seed", 4, prompt)
	west := refengine.BlockKeys("seed", 4, append(prompt, 10, 11, 12))
	fmt.Println(len(east), len(west))
	fmt.Printf("%x\n%x\n", east[1][:4], west[1][:4])
	// Output:
	// 2 3
	// b05baecd
	// b05baecd
}

func Example() {
	ctx := context.Background()
	e, err := refengine.Open(ctx, refengine.Config{
		Addr: "unix:///run/kvferry/east.sock", EngineID: "ref-east", Model: refengine.DemoModel(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	turn, err := e.Generate(ctx, refengine.Request{
		Session: "chat-1", Tokens: []int{3, 1, 4, 1, 5}, MaxNew: 32, Commit: true, Publish: true, UseCache: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(turn.Tokens, turn.PrefilledTokens)
}
