package prefill_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/kvferry/kvferry/prefill"
	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A proxy moves a session to this region and has the engine here, which knows nothing of the migration, prefill the front while the tail
// lands.
func Example() {
	var migrations kvferryv1.MigrationServiceClient // of the daemon in the region that the session moves to
	move := func(ctx context.Context, ids []int) error {
		stream, err := migrations.Migrate(ctx, &kvferryv1.MigrateRequest{
			RequestId: "turn-7", Session: &kvferryv1.SessionRef{SessionId: "chat-1"}, Mode: kvferryv1.Mode_MODE_HYBRID,
		})
		if err != nil {
			return err
		}
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() {
			for {
				update, err := stream.Recv()
				if err != nil || update.GetReport() != nil {
					ended <- err
					return
				}
			}
		}()
		report, err := prefill.Run(ctx, prefill.Config{
			Migrations: migrations, MigrationID: first.GetMigrationId(),
			URL: "http://127.0.0.1:8000", Model: "my-model", Tokens: ids, BlockTokens: 16,
		})
		if e, ok := errors.AsType[*prefill.EngineError](err); ok {
			log.Printf("the fetch takes what the engine did not prefill: %v", e)
		}
		fmt.Printf("%d blocks in %d requests, %.3f s of overhead\n", report.ComputedBlocks, report.Requests, report.OverheadSeconds)
		return <-ended // and then the real request
	}
	_ = move
}
