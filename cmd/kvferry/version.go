package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
)

// versionView is what was built.
type versionView struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func (a *app) newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program; 'status' prints the daemon's", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionView{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			return a.print(v, func(w io.Writer) { row(w, fmt.Sprintf("kvferry %s (%s, %s/%s)", v.Version, v.Go, v.OS, v.Arch)) })
		},
	}
}
