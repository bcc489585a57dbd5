package web

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const prometheusConfig = `
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- job_name: slice
  static_configs:
  - targets: ["192.0.2.10:80", "[2001:db8::10]:80"]
`

// TestPrometheus runs a Prometheus that scrapes a server, and queries it.
func TestPrometheus(t *testing.T) {
	world.Tool(t, "prometheus", `version ([\d.]+)`, "--version")
	world.Module(t, "github.com/prometheus/client_golang")
	world.Each(t, func(t *testing.T, w *world.World) {
		registry := prometheus.NewRegistry()
		answers := prometheus.NewCounter(prometheus.CounterOpts{Name: "answers_total"})
		registry.MustRegister(answers, collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		answers.Add(42)
		site(t, w, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		startPrometheus(t, w)
		for _, query := range []string{`answers_total == 42`, `up == 1`, `go_goroutines > 0`} {
			for _, instance := range []string{"192.0.2.10:80", "[2001:db8::10]:80"} {
				await(t, w, query, instance)
			}
		}
	})
}

func startPrometheus(t *testing.T, w *world.World) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(prometheusConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(need.Tool(t, "prometheus"), "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:9090")
	var out strings.Builder
	cmd.Stderr = &out
	if err := w.Client.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
}

// startup is longer than Prometheus takes until its first scrape; after that it scrapes once a
// second.
const startup = 20 * time.Second

// await queries Prometheus until its answer names the instance.
func await(t *testing.T, w *world.World, query, instance string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(w.Moving(t, startup), world.Patience)
	defer cancel()
	transport := &http.Transport{DialContext: w.Client.DialContext}
	defer transport.CloseIdleConnections()
	last := ""
	// it has no way to tell when it has scraped
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, "GET",
			"http://127.0.0.1:9090/api/v1/query?query="+url.QueryEscape(query), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		last = fmt.Sprint(string(body), err)
		if strings.Contains(last, fmt.Sprintf("%q:%q", "instance", instance)) {
			return
		}
	}
	t.Errorf("%s of %s: %s", query, instance, last)
}
