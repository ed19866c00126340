package report

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// frames holds the page at two widths and writes down what it looks like there.
const frames = `<!doctype html><html lang="en"><head><title>frames</title><link rel="icon" href="data:,"></head><body>
<iframe title="narrow" src="report.html" width="360" height="800" style="border:0"></iframe>
<iframe title="wide" src="report.html" width="1440" height="900" style="border:0"></iframe>
<pre id="probe"></pre>
<script>
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(f => {
    const d = f.contentDocument, e = d.documentElement;
    return {
      width: e.clientWidth, scroll: e.scrollWidth, height: e.scrollHeight, background: f.contentWindow.getComputedStyle(d.body).backgroundColor,
      plots: [...d.querySelectorAll("svg")].map(s => {
        const b = s.getBoundingClientRect();
        const drawn = [...s.querySelectorAll("path")].filter(p => { const q = p.getBoundingClientRect(); return q.width + q.height > 0; }).length;
        return {width: b.width, height: b.height, drawn: drawn, texts: s.querySelectorAll("text").length};
      }),
    };
  });
  document.getElementById("probe").textContent = JSON.stringify(seen);
});
</script></body></html>`

type seenPlot struct {
	Width, Height float64
	Drawn, Texts  int
}

type seenPage struct {
	Width, Scroll, Height int
	Background            string
	Plots                 []seenPlot
}

// browser finds Chromium.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium on this machine: how the page looks is not tested")
	return ""
}

// look opens the frames and returns what they saw, and what the browser's console says.
func look(t *testing.T, path, url string, args ...string) (pages []seenPage, console []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + t.TempDir(), "--enable-logging=stderr", "--v=0",
		"--virtual-time-budget=10000", "--window-size=2000,1200", "--dump-dom",
	}, args...)
	cmd := exec.CommandContext(ctx, path, append(args, url)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, stderr.String())
	}
	for line := range strings.Lines(stderr.String()) {
		if strings.Contains(line, "CONSOLE") {
			console = append(console, line)
		}
	}
	m := regexp.MustCompile(`(?s)<pre id="probe">(.*?)</pre>`).FindStringSubmatch(stdout.String())
	if m == nil {
		t.Fatalf("no probe in %s\n%s", stdout.String(), stderr.String())
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &pages); err != nil {
		t.Fatalf("probe %q: %v", m[1], err)
	}
	return pages, console
}

// In a browser: no message on the console, no request but for the page, plots drawn, no sideways scrolling at 360 and 1440
// pixels, and another ground in the dark.
func TestInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser; the tests of the page's text run in the short form, too")
	}
	path := browser(t)
	page := render(t, all(t))
	var mu sync.Mutex
	asked := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		body := map[string]string{"/": frames, "/report.html": page}[r.URL.Path]
		if body == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	defer srv.Close()
	ground := map[string]bool{}
	for _, mode := range []string{"1", "0"} { // light, dark
		pages, console := look(t, path, srv.URL+"/", "--blink-settings=preferredColorScheme="+mode)
		if len(console) > 0 {
			t.Errorf("the console says %v", console)
		}
		if len(pages) != 2 {
			t.Fatalf("pages %+v", pages)
		}
		for i, width := range []int{360, 1440} {
			if err := fits(pages[i], width); err != nil {
				t.Errorf("colour scheme %s, %d pixels: %v", mode, width, err)
			}
		}
		ground[pages[0].Background] = true
	}
	if len(ground) != 2 {
		t.Errorf("light and dark grounds are %v", ground)
	}
	for p := range asked {
		if p != "/" && p != "/report.html" {
			t.Errorf("the browser asked for %s", p)
		}
	}
}

// fits says what is wrong with a page at a width.
func fits(p seenPage, width int) error {
	scrollbar := 20
	if p.Width > width || p.Width < width-scrollbar || p.Scroll > p.Width {
		return fmt.Errorf("the page is %d wide, %d to scroll", p.Width, p.Scroll)
	}
	if p.Height < 1000 || len(p.Plots) != 3 {
		return fmt.Errorf("%d pixels high with %d plots", p.Height, len(p.Plots))
	}
	for i, s := range p.Plots {
		if s.Width < float64(width)*0.4 || s.Width > float64(width) || s.Height < 150 || s.Drawn < 10 || s.Texts < 5 {
			return fmt.Errorf("plot %d: %+v", i, s)
		}
	}
	return nil
}
