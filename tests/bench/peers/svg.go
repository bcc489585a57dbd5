package main

import (
	"fmt"
	"html"
	"strings"
)

// Sizes in pixels.
const (
	barHeight  = 14
	barGap     = 3
	labelWidth = 150
	plotWidth  = 330
	valueWidth = 150
	panelGap   = 34
	perRow     = 2
)

// chart draws one panel of bars per main quantity, with whiskers from the lowest to the highest
// sample.
func chart(r *results) string {
	var b strings.Builder
	x, y, rowHeight, n, bottom := 0, 60, 0, 0, 0
	for _, q := range catalogue() {
		columns := r.with(q.Key)
		if !q.Main || len(columns) < 2 {
			continue
		}
		h := panel(&b, q, columns, x, y)
		rowHeight = max(rowHeight, h)
		bottom = y + rowHeight
		if n++; n%perRow == 0 {
			x, y, rowHeight = 0, y+rowHeight+panelGap, 0
		} else {
			x += labelWidth + plotWidth + valueWidth + panelGap
		}
	}
	width := perRow*(labelWidth+plotWidth+valueWidth) + (perRow+1)*panelGap
	head := fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">
<style>text{fill:#222}.ours{fill:#c2410c}.peer{fill:#94a3b8}.kernel{fill:#475569}line{stroke:#111;stroke-width:1}rect.bg{fill:#fff}</style>
<rect class="bg" width="100%%" height="100%%"/>
<text x="10" y="22" font-size="15">rdma-netstack and its peers</text>
<text x="10" y="40">%s, %d CPUs (%s), linux %s, %s; median of %d rounds, whiskers lowest to highest</text>
`, width, bottom+20, r.Date.Format("2006-01-02"), r.Machine.CPUs, html.EscapeString(r.Machine.CPU), r.Machine.Kernel, r.Machine.Go, r.Rounds)
	return head + b.String() + "</svg>\n"
}

// with are the columns that have a quantity.
func (r *results) with(key string) (cs []*column) {
	for _, c := range r.Peers {
		if _, ok := c.of(key); ok {
			cs = append(cs, c)
		}
	}
	return cs
}

// panel draws one quantity and returns its height.
func panel(b *strings.Builder, q quantity, columns []*column, x, y int) int {
	better := "more is better"
	if q.Less {
		better = "less is better"
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s, %s (%s)</text>`+"\n", x+10, y,
		html.EscapeString(q.Title), q.Unit, better)
	top := 0.0
	for _, c := range columns {
		s, _ := c.of(q.Key)
		top = max(top, s.high)
	}
	if top == 0 {
		top = 1
	}
	at := y + 8
	for _, c := range columns {
		s, _ := c.of(q.Key)
		bar(b, q, c, s, x+10, at, top)
		at += barHeight + barGap
	}
	return at - y
}

func bar(b *strings.Builder, q quantity, c *column, s spread, x, y int, top float64) {
	class := "peer"
	switch {
	case c.Ours:
		class = "ours"
	case strings.HasPrefix(c.Name, stackKernel):
		class = "kernel"
	}
	px := func(v float64) float64 { return v / top * plotWidth }
	left, middle := float64(x+labelWidth), float64(y)+barHeight/2
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, x+labelWidth-5, y+barHeight-3,
		html.EscapeString(c.Name))
	fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"/>`, class, left,
		y, px(s.median), barHeight)
	fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, left+px(s.low),
		left+px(s.high), middle, middle)
	fmt.Fprintf(b, `<text x="%.1f" y="%d">%.*f</text>`+"\n", left+px(s.high)+5,
		y+barHeight-3, q.Digits, s.median)
}
