package transfer_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

// Two agents in one process: the second reads a block of the first's memory.
func Example() {
	ctx := context.Background()
	ca := transfertest.NewCA()
	open := func(region string) *transfer.Agent {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		a, err := transfer.Open(transfer.Config{
			Name: transfertest.Name(region, "n1"),
			TLS:  ca.Node(region, "n1"),
			Conn: conn,
			OnNotify: func(from transfer.Peer, payload []byte) {
				fmt.Printf("%s says: %s\n", from.ID, payload)
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		return a
	}
	east, west := open("east"), open("west")

	// The source: four pages of 8 bytes.
	source := []byte("page 0. page 1. page 2. page 3. ")
	remote, err := east.Register(transfer.Bytes(source, 8))
	if err != nil {
		log.Fatal(err)
	}
	// The destination, and a link to where the pages are.
	landed := make([]byte, 16)
	local, err := west.Register(transfer.Bytes(landed, 8))
	if err != nil {
		log.Fatal(err)
	}
	link, err := west.Connect(ctx, east.Addr().String(), transfertest.Name("east", "n1"))
	if err != nil {
		log.Fatal(err)
	}

	// Two pages from offset 8 on, to the start of the destination.
	t, err := link.Prepare(transfer.Read,
		[]transfer.Desc{{Memory: local, Offset: 0, Pages: 2}},
		[]transfer.Desc{{Memory: remote, Offset: 8, Pages: 2}},
		transfer.TransferOptions{Notify: []byte("got them")})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Release()
	if err := t.Post(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := t.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %d pages: %q\n", result.State, result.PagesDone, landed)

	// Close waits until the source has taken the notification.
	if err := west.Close(); err != nil {
		log.Fatal(err)
	}
	if err := east.Close(); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// done: 2 pages: "page 1. page 2. "
	// spiffe://kvferry/region/west/node/n1 says: got them
}
