package monitoring

import (
	"context"
	"encoding/json"
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

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const (
	alertsFile    = "../../../deploy/prometheus/alerts.yml"
	dashboardFile = "../../../deploy/grafana/rdma-netstack.json"
)

// prometheus is a running one that scrapes a server once a second.
type prometheus struct{ at string }

// watch starts a Prometheus with the alerts, and returns when it has scraped target several times.
func watch(t *testing.T, target string) *prometheus {
	t.Helper()
	program, dir := need.Tool(t, "prometheus"), t.TempDir()
	rules, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
- job_name: rdma-netstack
  static_configs: [{targets: [%q]}]
`, rules, strings.TrimPrefix(target, "http://")), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{"http://" + freeAddress(t)}
	cmd := exec.Command(program, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(p.at, "http://"))
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	p.await(t, `count_over_time(up{job="rdma-netstack"}[1m]) >= 3`)
	return p
}

// patience is longer than Prometheus takes until its first scrapes, and until one succeeds again
// that took longer than a second on a busy machine: its series are gone until then.
const patience = time.Minute

// await queries until the answer is not empty: it has no other way to tell when it has scraped.
func (p *prometheus) await(t *testing.T, query string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		n, err := p.query(query)
		if err == nil && n > 0 {
			return
		}
		last = err
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Errorf("no series for %s in %v: %v", query, patience, last)
}

// query returns how many series an expression has now.
func (p *prometheus) query(expr string) (series int, err error) {
	var answer struct{ Result []any }
	err = p.get("/api/v1/query?query="+url.QueryEscape(expr), &answer)
	return len(answer.Result), err
}

// get decodes the data of an answer of Prometheus' HTTP API.
func (p *prometheus) get(path string, data any) error {
	resp, err := http.Get(p.at + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%w: %s", err, body)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}
