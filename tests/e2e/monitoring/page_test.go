package monitoring

import (
	"bytes"
	"fmt"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestStatusPage has a browser show the page of a server that works, then rests, then loses its
// device, then ends. STATUS_PAGE=DIR keeps a picture of each scheme of colours there.
func TestStatusPage(t *testing.T) {
	need.Tool(t, "chromium")
	s := serve(t)
	b := browse(t)
	b.call("Page.navigate", map[string]any{"url": s.page.URL + "/"}, nil)
	// rates come with the second reading, curves grow with each
	b.await(`document.querySelectorAll("#queues polyline").length == 4 &&
		[...document.querySelectorAll("#queues tbody tr")].some(tr => tr.cells[1].innerText > 0) &&
		document.querySelector("polyline").getAttribute("points").split(" ").length > 1`)
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		checkContrast(b)
		for name, width := range map[string]int{"": 1280, "-phone": 390} {
			b.resize(width)
			checkWidth(b, width)
			checkPicture(b, scheme, scheme+name)
		}
	}
	b.resize(1280)
	checkTree(b)
	checkKeys(b)
	s.quit()
	checkValues(b, s)
	s.nic.FailDevice()
	b.await(`at("verdict").innerText.startsWith("In error:") && at("verdict").className == "bad"`)
	if len(b.complains) > 0 {
		t.Errorf("the page complains: %s", b.complains)
	}
	s.page.CloseClientConnections()
	s.page.Listener.Close()
	b.await(`at("verdict").innerText == "The server does not answer. What is shown is old."`)
}

// shown is what a page shows: the texts of its tables' cells by row, and the reading they are of.
type shown struct {
	Status admin.Status          `json:"status"`
	Tables map[string][][]string `json:"tables"`
}

const readTables = `({status: before, tables: Object.fromEntries(
	[...document.querySelectorAll("table")].map(t => [t.id, [...t.tBodies[0].rows].map(
		tr => [...tr.cells].map(c => c.innerText))]))})`

// checkValues waits until the page has all that the stack counts, which is what it counts for good,
// and compares what is in the cells.
func checkValues(b *browser, s server) {
	b.t.Helper()
	var page shown
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		b.value(readTables, &page)
		filter := filterRows(s.Filter().Status())
		if quiet(admin.Count(s), page.Status.Stats) && slices.EqualFunc(filter,
			filterShown(page.Tables["filter"]), slices.Equal) && filter[2][2] != "0" {
			break
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the page has %v, the stack %v; the filter %q, and %q", page.Status.Stats,
				admin.Count(s), filterShown(page.Tables["filter"]), filter)
		}
	}
	want, device := page.Status.Stats.Counters, s.Device().Stats()
	var sums [4]uint64
	metrics := fetch(b.t, s.page.URL+"/metrics")
	for i, q := range device.Rx {
		sums[0], sums[1] = sums[0]+q.Packets, sums[1]+q.Bytes
		line := fmt.Sprintf(`rdma_netstack_rx_packets_total{device="%s",queue="%d"} %d`, "sim_a", i,
			want[fmt.Sprintf("rx%d_packets", i)])
		if !strings.Contains(metrics, line+"\n") {
			b.t.Errorf("/metrics has no line %s", line)
		}
	}
	for _, q := range device.Tx {
		sums[2], sums[3] = sums[2]+q.Packets, sums[3]+q.Bytes
	}
	traffic := page.Tables["traffic"]
	for i, n := range sums {
		if got := strings.ReplaceAll(traffic[0][7+i], ",", ""); got != fmt.Sprint(n) || n == 0 {
			b.t.Errorf("column %d of the traffic is %s, want %d", 7+i, got, n)
		}
	}
	if len(page.Tables["queues"]) != 2 || len(page.Tables["health"]) != len(s.Health()) {
		b.t.Errorf("%d queues, health %q", len(page.Tables["queues"]), page.Tables["health"])
	}
	problems := admin.Problems(admin.Count(s))
	if len(problems) == 0 || len(problems) != len(page.Tables["drops"]) {
		b.t.Fatalf("drops %q, want %+v", page.Tables["drops"], problems)
	}
	for i, p := range problems {
		if row := page.Tables["drops"][i]; row[0] != p.Name || row[3] != p.Meaning ||
			strings.ReplaceAll(row[1], ",", "") != fmt.Sprint(p.Count) {
			b.t.Errorf("drops: %q, want %+v", row, p)
		}
	}
	if n := len(page.Tables["traffic"]); n != 2 || page.Tables["traffic"][1][0] != "Linux: port" {
		b.t.Errorf("%d rows of traffic: %q", n, page.Tables["traffic"])
	}
	if conns := page.Tables["conns"]; len(conns) == 0 || conns[0][2] != "tcp LISTEN" {
		b.t.Errorf("connections: %q", conns)
	}
}

// filterRows returns the panel of the filter as it is to be: a denied prefix, two rules, a policy.
func filterRows(want stack.FilterStatus) [][]string {
	row := func(name, verdict string, packets uint64, about string) []string {
		return []string{name, verdict, fmt.Sprint(packets), about}
	}
	e, c := want.Entries[0], want.Chains[0]
	return [][]string{
		row("203.0.113.0/24", "deny", e.Packets, "until "+e.Until.UTC().Format(time.DateTime)),
		row("input rule 1", "accept", c.Rules[0].Packets, c.Rules[0].Text),
		row("input rule 2", "drop", c.Rules[1].Packets, c.Rules[1].Text),
		row("input policy", "accept", c.Packets, "–")}
}

// filterShown returns the panel of the filter, without rates.
func filterShown(rows [][]string) (all [][]string) {
	for _, r := range rows {
		all = append(all, []string{r[0], r[1], strings.ReplaceAll(r[2], ",", ""), r[4]})
	}
	return all
}

// quiet reports whether two readings are of the same counts. Looking and sleeping go on when no
// frames come.
func quiet(a, b admin.Counters) bool {
	looks := regexp.MustCompile(`_(polls|events|waits|arms|asleep_nanos)$`)
	for _, c := range []admin.Counters{a, b} {
		maps.DeleteFunc(c.Counters, func(name string, _ uint64) bool {
			return looks.MatchString(name)
		})
	}
	return maps.Equal(a.Counters, b.Counters)
}

// checkTree has Chromium's accessibility tree name what there is, as a screen reader would.
func checkTree(b *browser) {
	b.t.Helper()
	type text struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name text
			Properties []struct {
				Name  string
				Value text
			}
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	roles, live := map[string]int{}, ""
	for _, n := range tree.Nodes {
		role, name := fmt.Sprint(n.Role.Value), fmt.Sprint(n.Name.Value)
		if n.Ignored {
			continue
		}
		roles[role]++
		for _, p := range n.Properties {
			switch {
			case p.Name == "live" && role == "status":
				live = fmt.Sprint(p.Value.Value)
			case p.Name == "focusable" && name == "" && role != "main" && role != "RootWebArea":
				b.t.Errorf("a %s takes the focus and has no name", role)
			}
		}
		if strings.HasSuffix(role, "eading") || role == "table" || role == "region" ||
			role == "columnheader" || role == "rowheader" {
			if name == "" || name == "<nil>" {
				b.t.Errorf("a %s has no name", role)
			}
		}
	}
	for role, least := range map[string]int{"main": 1, "banner": 1, "contentinfo": 1, "status": 1,
		"button": 1, "heading": 8, "region": 7, "table": 6, "columnheader": 47, "rowheader": 12} {
		if roles[role] < least {
			b.t.Errorf("%d nodes are a %s, want %d", roles[role], role, least)
		}
	}
	if live != "polite" {
		b.t.Errorf("the status is read out %q", live)
	}
}

// checkKeys goes over the page by keyboard: the link to the tables comes first, the focus is always
// seen, and the button works.
func checkKeys(b *browser) {
	b.t.Helper()
	type focus struct{ Tag, Text, Outline string }
	next := func() (f focus) {
		b.t.Helper()
		b.press("Tab", 9, "")
		b.value(`(e => ({tag: e.tagName, text: e.innerText.slice(0, 20),
			outline: getComputedStyle(e).outlineStyle}))(document.activeElement)`, &f)
		if f.Outline == "none" {
			b.t.Errorf("nobody sees that %+v has the focus", f)
		}
		return f
	}
	if f := next(); f.Text != "Skip to the tables" {
		b.t.Errorf("first comes %+v", f)
	}
	if f := next(); f.Tag != "BUTTON" {
		b.t.Errorf("then comes %+v", f)
	}
	b.press(" ", 32, " ")
	b.await(`at("pause").getAttribute("aria-pressed") == "true"`)
	b.press(" ", 32, " ")
	b.await(`at("pause").getAttribute("aria-pressed") == "false"`)
	tables := 0
	for range 8 { // tables that may be wider than the window, then the links
		if f := next(); f.Tag == "DIV" {
			tables++
		}
	}
	if tables != 6 {
		b.t.Errorf("%d tables can be moved by keyboard, want 6", tables)
	}
}

// checkContrast wants 4.5 to 1 between text and what is behind it, as WCAG 2.2 section 1.4.3 has
// it.
func checkContrast(b *browser) {
	b.t.Helper()
	var colours map[string][2]string
	b.value(`Object.fromEntries(["body", "thead th", "tbody td", ".soft", ".good", "button", "a",
		"caption", "dt"].map(s => {
		const e = document.querySelector(s), clear = "rgba(0, 0, 0, 0)";
		let under = e;
		while (getComputedStyle(under).backgroundColor == clear) under = under.parentElement;
		return [s, [getComputedStyle(e).color, getComputedStyle(under).backgroundColor]];
	}))`, &colours)
	for what, pair := range colours {
		one, other := luminance(b.t, pair[0]), luminance(b.t, pair[1])
		if r := (max(one, other) + .05) / (min(one, other) + .05); r < 4.5 {
			b.t.Errorf("%s: contrast of %v is %.1f", what, pair, r)
		}
	}
}

// luminance is the relative luminance of a colour such as rgb(1, 2, 3), as WCAG 2.2 defines it.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	var c [3]float64
	if _, err := fmt.Sscanf(colour, "rgb(%g, %g, %g)", &c[0], &c[1], &c[2]); err != nil {
		t.Fatalf("%s: %v", colour, err)
	}
	for i := range c {
		if c[i] /= 255; c[i] <= .04045 {
			c[i] /= 12.92
		} else {
			c[i] = math.Pow((c[i]+.055)/1.055, 2.4)
		}
	}
	return .2126*c[0] + .7152*c[1] + .0722*c[2]
}

// checkWidth wants no part of the page to be outside of a window of a width: at that of a desktop
// no table is to be moved to be seen, at any other the page itself is not.
func checkWidth(b *browser, width int) {
	b.t.Helper()
	var page int
	var wide []string
	b.value("document.documentElement.scrollWidth", &page)
	b.value(`[...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).
		map(e => e.querySelector("table").id)`, &wide)
	if page > width || width >= 1280 && len(wide) > 0 {
		b.t.Errorf("at %d pixels the page takes %d; wider than what is seen of them: %q", width,
			page, wide)
	}
}

// checkPicture wants the picture of the page to be light or dark in its corner.
func checkPicture(b *browser, scheme, name string) {
	b.t.Helper()
	var shot struct{ Data []byte }
	b.call("Page.captureScreenshot", map[string]any{"format": "png",
		"captureBeyondViewport": true}, &shot)
	if dir := os.Getenv("STATUS_PAGE"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), shot.Data, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	picture, err := png.Decode(bytes.NewReader(shot.Data))
	if err != nil {
		b.t.Fatal(err)
	}
	red, _, _, _ := picture.At(picture.Bounds().Dx()-5, 5).RGBA()
	if light := red > 0x8000; light != (scheme == "light") || picture.Bounds().Dx() < 370 {
		b.t.Errorf("%s: red is %#x in the corner of %v", scheme, red, picture.Bounds())
	}
}
