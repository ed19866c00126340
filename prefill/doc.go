// Package prefill runs the front of a hybrid migration on an engine that knows nothing of it: a proxy embeds it. While the
// tail of a session lands from the source, back to front, [Run] claims blocks from the front
// (MigrationService.ClaimPrefill) and has the engine prefill them by ordinary completion requests of one output token, for
// prefixes that grow. The engine's prefix cache makes each request compute only what is new, its KV connector hands the
// blocks to the daemon, and the real request afterwards finds the front in the engine and loads the tail through the
// connector.
//
// # Usage
//
//	stream, err := migrations.Migrate(ctx, request) // mode hybrid, or unspecified
//	first, err := stream.Recv()
//	report, err := prefill.Run(ctx, prefill.Config{
//		Migrations: migrations, MigrationID: first.GetMigrationId(),
//		URL: "http://127.0.0.1:8000", Model: "my-model",
//		Tokens: ids, BlockTokens: 16,
//	})
//	// When the stream has told the end of the migration, or at once after EndComputed: the real request.
//
// An engine whose connector waits for blocks that are landing may get the real request once Run has returned EndStopped: what
// is not the front's is here or on its way then. The end of the migration comes later, after the hand-over, which waits for a
// source that is gone.
//
// The engine needs prefix caching, and a connector that writes finished blocks to the daemon and registers with
// claims_prefill, so that the planner may choose hybrid.
//
// # Requests
//
// POST URL/v1/completions with prompt as token ids, max_tokens 1, temperature 0, stream false and
// kv_transfer_params {"kvferry_migration_id": id}, as vLLM takes it. A prefix is a whole number of granted blocks: a block
// that was not granted is never asked for. Of the answer usage.prompt_tokens and
// usage.prompt_tokens_details.cached_tokens are read, where they are; vLLM tells the latter with
// --enable-prompt-tokens-details. A session that is given as text is made tokens by POST URL/tokenize.
//
// The first request is of one block, and each later one doubles the prefix at the most, up to StepTokens of new ones. A line
// through time over computed tokens gives what a request costs beyond its tokens: connecting, the wait in the scheduler,
// the step of the one output token. A step that would spend more than MaxOverhead on that is made larger, and where the
// fetch would be done with all that is left before a request is, none is sent.
//
// # When something fails
//
// The front ends, Run returns the error, and the fetch takes the rest once the daemon has not heard of the front for three
// seconds. A migration that ends, or a daemon that is gone, leaves the rest to the real request.
//
// # Concurrency
//
// Run may be called concurrently. It starts one goroutine for each request, which tells the daemon that the front is at
// work, and waits for it.
//
// # Limitations
//
//   - One request at a time: between two of them the engine computes nothing of this session.
//   - What a failed or cancelled request was to compute is given back, and fetched. A daemon that does not hear of it waits three seconds.
//   - Overhead is told from compute by a straight line: on very long prefixes, where attention grows, it comes out a little
//     low.
//   - Prompts with images, adapters or prompt embeddings need keys that token ids do not give; adapters by the name of the
//     model and cache salts by Extra work.
package prefill
