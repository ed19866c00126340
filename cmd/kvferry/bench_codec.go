package main

import (
	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/codecbench"
	"github.com/kvferry/kvferry/bench/results"
)

func (a *app) newBenchCodec(b *benchFlags) *cobra.Command {
	var pages, rounds int64
	var seed uint64
	cmd := &cobra.Command{
		Use:   "codec",
		Short: "Measure how much shorter the codecs make KV values, and how fast",
		Long: `codec codes pages of values that have the entropy of real KV cache, with each codec in turn, beside zstd and s2 on the same pages
as they are and on planes of bytes. Rates are GB/s of one core, a GB being 1e9 bytes of pages before coding; medians of all rounds.`,
		Example: `  kvferry bench codec
  kvferry bench codec -o json --save codec.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.begin(results.KindCodec); err != nil {
				return err
			}
			res, err := codecbench.Run(cmd.Context(), codecbench.Config{Pages: int(pages), Rounds: int(rounds), Seed: seed})
			if err != nil {
				return err
			}
			f, err := res.File(benchCommand(cmd))
			if err != nil {
				return err
			}
			f.Versions["kvferry"] = version
			return b.end(cmd.Context(), f, res.Table())
		},
	}
	fl := cmd.Flags()
	fl.Var(newCount(&pages, 64, 2, 4096), "pages", "pages of 128 KiB")
	fl.Var(newCount(&rounds, 7, 1, 1000), "rounds", "rounds of all codecs")
	fl.Uint64Var(&seed, "seed", 0, "of the values")
	return cmd
}
