package monitoring

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// dashboard is what the tests look at of Grafana's model.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// filled is an expression with Grafana's variables replaced.
func filled(expr string) string {
	return strings.NewReplacer("$job", ".+", "$instance", ".+",
		"$__rate_interval", "1m").Replace(expr)
}

// name matches a metric of ours in an expression.
var name = regexp.MustCompile(`rdma_netstack_\w+`)

// missing are the metrics of an expression that a page of /metrics does not have.
func missing(expr, page string) (names []string) {
	for _, n := range name.FindAllString(expr, -1) {
		if !regexp.MustCompile(`(?m)^` + n + `[ {]`).MatchString(page) {
			names = append(names, n)
		}
	}
	return names
}

// TestExpressions: a Prometheus that scrapes a running server answers every expression of the
// dashboard with at least one series, and evaluates every alert; none fires on a sound server.
func TestExpressions(t *testing.T) {
	need.Tool(t, "prometheus")
	url := serve(t).page.URL
	p := watch(t, url)
	page := fetch(t, url+"/metrics")
	if got := missing("rdma_netstack_link_up / rdma_netstack_no_such", page); !slices.Equal(got,
		[]string{"rdma_netstack_no_such"}) {
		t.Fatalf("the check of names finds %v", got)
	}
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			expr := filled(target.Expr)
			if names := missing(expr, page); names != nil {
				t.Errorf("%s: not in a scrape: %v", panel.Title, names)
			}
			p.await(t, expr)
		}
	}
	checkAlerts(t, p, page)
}

func checkAlerts(t *testing.T, p *prometheus, page string) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Name, Query, LastError string
				Alerts                 []struct{ State string }
				Annotations            map[string]string
			}
		}
	}
	if err := p.get("/api/v1/rules", &rules); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(rules.Groups) != 1 || len(rules.Groups[0].Rules) < 10 {
		t.Fatalf("%+v", rules)
	}
	for _, r := range rules.Groups[0].Rules {
		if names := missing(r.Query, page); names != nil {
			t.Errorf("%s: not in a scrape: %v", r.Name, names)
		}
		if _, err := p.query(r.Query); err != nil || r.LastError != "" {
			t.Errorf("%s: %v, %s", r.Name, err, r.LastError)
		}
		for _, a := range r.Alerts {
			if a.State == "firing" {
				t.Errorf("%s fires", r.Name)
			}
		}
		if !strings.Contains(string(doc), "\n## "+r.Name+"\n") ||
			r.Annotations["runbook"] != "docs/alerts.md#"+strings.ToLower(r.Name) {
			t.Errorf("%s: no section in docs/alerts.md, or not named: %v", r.Name, r.Annotations)
		}
	}
	if n := strings.Count(string(doc), "\n## RDMANetstack"); n != len(rules.Groups[0].Rules) {
		t.Errorf("docs/alerts.md has %d alerts, there are %d", n, len(rules.Groups[0].Rules))
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestDashboard: panels have numbers of their own and do not cover each other, and every variable
// of an expression is defined.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || len(d.Panels) < 20 {
		t.Fatalf("%q, %q, %d panels", d.UID, d.Title, len(d.Panels))
	}
	defined := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		defined[v.Name] = true
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: number %d is another panel's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s covers %q at %d, %d", p.Title, other, x, y)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("%s: %s with %d expressions", p.Title, p.Type, len(p.Targets))
		}
		for _, target := range p.Targets {
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !defined[v[1]] {
					t.Errorf("%s: no variable %s", p.Title, v[1])
				}
			}
		}
	}
}

// TestAlerts has promtool run every alert on series that must set it off, and check that there is
// a test for each.
func TestAlerts(t *testing.T) {
	promtool := need.Tool(t, "promtool")
	series := filepath.Join("testdata", "alerts_test.yml")
	if out, err := exec.Command(promtool, "test", "rules", series).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	alerts, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(series)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(alerts), -1) {
		if !strings.Contains(string(tests), "alertname: "+m[1]+"\n") {
			t.Errorf("%s is not tested", m[1])
		}
	}
	broken := filepath.Join(t.TempDir(), "alerts_test.yml")
	text := strings.ReplaceAll(string(tests), "../../../../deploy", mustAbs(t, "../../../deploy"))
	text = strings.ReplaceAll(text, "link_up{", "link_gone{")
	if err := os.WriteFile(broken, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "test", "rules", broken).CombinedOutput(); err == nil {
		t.Errorf("promtool does not miss an alert: %s", out)
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
