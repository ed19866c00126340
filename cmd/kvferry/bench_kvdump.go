package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/kvdump"
	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/internal/daemon"
)

// kvdumpFlags are the flags of bench kv-dump.
type kvdumpFlags struct {
	cfg          kvdump.Config
	engine       kvdump.Engine
	daemon       kvdump.Daemon
	text, shape  string
	socket, keys string
	ranks        int64
}

// maxText is the most of a text that is read: a token a byte, and the longest sequence has so many.
const maxText = 1 << 20

func (a *app) newBenchKVDump(b *benchFlags) *cobra.Command {
	var k kvdumpFlags
	cmd := &cobra.Command{
		Use:   "kv-dump FILE",
		Short: "Record real KV pages into a file, for bench codec",
		Long: `kv-dump writes KV pages into one file that says itself what they are: model, element type, shape, the layer of each page, a checksum
a page. kvferry bench codec --pages FILE measures the codecs on them.

By default the pages are those that the reference engine computes: a transformer of the KV shape of Llama-3.1-70B, BF16, prefills a text, a
token a byte, and takes twice --max-bytes of memory. Its arithmetic is a transformer's, its weights are random: a trained model's cache has other statistics.

With --socket the pages are those that an engine has committed to the daemon on this host, for example vLLM's. The API tells nobody
which blocks a session has, so name them with --keys: the engine's own block keys, one a line, in hex or base64. kv-dump
joins the engine as one more process of it, for as long as it runs, holds the blocks, reads them from the arena's file, which it opens
for reading only, and gives them back; the daemon's log then tells of a process of the engine that ended.

The values of a session's cache tell what its text was to who has the model: the file is readable by its owner alone. It appears
when it is whole; Ctrl-C leaves nothing.`,
		Example: `  kvferry bench kv-dump pages.kv && kvferry bench codec --pages pages.kv
  kvferry bench kv-dump pages.kv --text book.txt --max-bytes 256MiB --force
  kvferry bench kv-dump pages.kv --socket unix:///run/kvferry/kvferry.sock --engine vllm-0 --keys keys.txt
  curl -s localhost:8000/generate -d '{"tokens":[...],"use_cache":true,"commit":true}' | jq -r '.keys[]' |
      kvferry bench kv-dump pages.kv --socket /run/kvferry/kvferry.sock --keys -    # of kvferry refengine`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef(strings.Join(args, " "), "one FILE to write", "%d files are named", len(args))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			k.cfg.Path = args[0]
			return a.benchKVDump(cmd, b, &k)
		},
	}
	fl := cmd.Flags()
	fl.Var(newBytes(&k.cfg.MaxBytes, kvdump.DefaultMaxBytes, 1, 64<<30), "max-bytes", "bytes of pages at most, in whole blocks")
	fl.BoolVar(&k.cfg.Force, "force", false, "replace a file that is there")
	fl.StringVar(&k.text, "text", "", "prefill this file's bytes, its first MiB at most (default: 1,500 bytes of prose and code)")
	fl.StringVar(&k.shape, "shape", "", "shape of the reference engine's model, JSON as kvferry refengine takes it (default: that of the demo)")
	fl.StringVar(&k.socket, "socket", "", "read the blocks of a running daemon, unix:///PATH or /PATH")
	fl.StringVar(&k.daemon.EngineID, "engine", "", "whose blocks; with --socket (default: the only engine there is)")
	fl.StringVar(&k.keys, "keys", "", "file of block keys, one a line, hex or base64, - for stdin; with --socket")
	fl.StringVar(&k.daemon.Tenant, "tenant", "", "tenant of the blocks; with --socket (default: the default tenant)")
	fl.Var(newCount(&k.ranks, 1, 1, 1024), "world", "tensor-parallel ranks that the engine has registered for; with --socket")
	return cmd
}

func (a *app) benchKVDump(cmd *cobra.Command, b *benchFlags, k *kvdumpFlags) error {
	if err := k.check(cmd); err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := b.progress()
	k.cfg.Progress = bar
	record := func() (*kvdump.Summary, error) { return kvdump.Compute(ctx, k.cfg, k.engine) }
	if k.socket != "" {
		record = func() (*kvdump.Summary, error) { return kvdump.Read(ctx, k.cfg, k.daemon) }
	}
	s, err := record()
	err = errors.Join(err, bar.Close())
	if s == nil {
		return kvdumpFault(ctx, err)
	}
	return errors.Join(err, a.print(viewKVDump(s), func(w io.Writer) { kvdumpTable(w, s) }))
}

// check moves the flags to the configuration and refuses what cannot be, before anything is computed.
func (k *kvdumpFlags) check(cmd *cobra.Command) error {
	if err := meaningless(cmd, "for a file of pages, which is no result", "save", "diff", "allow-unlike"); err != nil {
		return err
	}
	if fi, err := os.Stat(filepath.Dir(k.cfg.Path)); err != nil || !fi.IsDir() {
		return usagef(k.cfg.Path, "a file in a folder that exists", "%s: its folder is not there", k.cfg.Path)
	}
	if fi, err := os.Stat(k.cfg.Path); err == nil && fi.IsDir() {
		return usagef(k.cfg.Path, "a file's name", "%s is a folder", k.cfg.Path)
	}
	if err := kvfile.CheckPlace(k.cfg.Path, k.cfg.Force); err != nil {
		return kvdumpFault(cmd.Context(), err)
	}
	if k.socket == "" {
		if err := meaningless(cmd, "without --socket", "engine", "keys", "tenant", "world"); err != nil {
			return err
		}
		return k.checkEngine()
	}
	if err := meaningless(cmd, "with --socket, which records what an engine has computed", "text", "shape"); err != nil {
		return err
	}
	var ok bool
	if k.daemon.Socket, ok = unixPath(k.socket); !ok || k.daemon.Socket == "" {
		return usagef(k.socket, "unix:///PATH of a daemon on this host", "--socket %q is no unix socket", k.socket)
	}
	if k.keys == "" {
		return usagef("", "--keys FILE, the keys of the blocks as the engine named them, one a line", "--socket without --keys says of which daemon, and not which blocks")
	}
	k.daemon.World = int(k.ranks)
	return k.readKeys(cmd.InOrStdin())
}

func (k *kvdumpFlags) checkEngine() error {
	if k.shape != "" {
		if err := parseShape(k.shape, &k.engine.Model); err != nil {
			return err
		}
	}
	if k.text == "" {
		return nil
	}
	f, err := os.Open(k.text)
	if err != nil {
		return fmt.Errorf("--text: %w", err)
	}
	k.engine.Text, err = io.ReadAll(io.LimitReader(f, maxText))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("--text: %w", err)
	}
	if len(k.engine.Text) == 0 {
		return usagef(k.text, "a file of text", "--text %s is empty", k.text)
	}
	return nil
}

func (k *kvdumpFlags) readKeys(stdin io.Reader) (err error) {
	in := stdin
	if k.keys != "-" {
		f, err := os.Open(k.keys)
		if err != nil {
			return fmt.Errorf("--keys: %w", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		in = f
	}
	if k.daemon.Keys, err = kvdump.ParseKeys(in); err != nil {
		return kvdumpFault(context.Background(), err)
	}
	if len(k.daemon.Keys) == 0 {
		return usagef(k.keys, "a file of block keys, one a line", "--keys: there is none in it")
	}
	return nil
}

// kvdumpFault is the fault of an error of package kvdump.
func kvdumpFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &fault{Code: exitCancelled, Reason: "CANCELLED", Message: "interrupted: no file is written", Fix: "run it again"}
	}
	if in, ok := errors.AsType[*kvdump.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	if r, ok := errors.AsType[*kvdump.RefusedError](err); ok {
		return &fault{Code: exitRefused, Reason: "REFUSED", Message: r.Message, Fix: r.Fix}
	}
	if errors.Is(err, fs.ErrExist) {
		return &fault{Code: exitRefused, Reason: "EXISTS", Message: err.Error(), Fix: "name another file, or replace this one with --force"}
	}
	f := faultOf(err)
	switch {
	case f.Code == exitUnreachable:
		f.Fix = "check that kvferryd runs on this host and that --socket names its socket"
	case f.Reason == string(daemon.ReasonEngineMismatch):
		f.Fix = "give --world as the engine has registered"
	default:
		return err
	}
	return f
}

// kvdumpView is what -o json prints.
type kvdumpView struct {
	File      string `json:"file"`
	Bytes     int64  `json:"bytes"`
	Blocks    int    `json:"blocks"`
	Pages     int    `json:"pages"`
	PageBytes int    `json:"page_bytes"`
	Model     string `json:"model"`
	DType     string `json:"dtype"`
	Kind      string `json:"kind"`
	Source    string `json:"source"`
	Absent    int    `json:"absent_blocks"`
	Left      int    `json:"left_blocks"`
}

func viewKVDump(s *kvdump.Summary) kvdumpView {
	return kvdumpView{
		File: s.Path, Bytes: s.Bytes, Blocks: s.Blocks, Pages: s.Header.Pages, PageBytes: s.Header.PageBytes, Model: s.Header.Model, DType: string(s.Header.DType), Kind: string(s.Header.Kind),
		Source: s.Header.Source, Absent: s.Absent, Left: s.Left,
	}
}

func kvdumpTable(w io.Writer, s *kvdump.Summary) {
	h := s.Header
	row(w, "file:", s.Path)
	row(w, "pages:", fmt.Sprintf("%d of %s, %s: %d blocks of %d layers", h.Pages, bytesText(int64(h.PageBytes)), bytesText(s.Bytes), s.Blocks, h.Layers))
	row(w, "values:", fmt.Sprintf("%s, %s, %d heads of %d, %d tokens a page", h.DType, h.Kind, h.KVHeads, h.HeadDim, h.Tokens))
	row(w, "model:", strings.TrimSpace(h.Model+" "+h.Revision))
	row(w, "from:", h.Source)
	if s.Absent > 0 {
		row(w, "not there:", fmt.Sprintf("%d of the blocks that --keys names", s.Absent))
	}
	if s.Left > 0 {
		row(w, "left out:", fmt.Sprintf("%d blocks beyond --max-bytes, or the %d pages that a file may have", s.Left, kvfile.MaxPages))
	}
	row(w, "next:", "kvferry bench codec --pages "+s.Path)
}
