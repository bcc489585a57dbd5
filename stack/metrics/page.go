package metrics

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// ContentType is that of what [Handler] answers.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// prefix of all names.
const prefix = "rdma_netstack_"

// The kinds of families.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// page is the text that is written. Its methods are called by one goroutine.
type page struct{ bytes.Buffer }

// sample is one line: what follows the name of its family, labels by name and value in turn, and
// the value.
type sample struct {
	suffix string
	labels []string
	value  string
}

// family writes a family, unless it has no samples.
func (p *page) family(kind, name, help string, samples ...sample) {
	if len(samples) == 0 {
		return
	}
	fmt.Fprintf(p, "# HELP %s%s %s\n# TYPE %[1]s%[2]s %[4]s\n", prefix, name, help, kind)
	for _, s := range samples {
		fmt.Fprintf(p, "%s%s%s", prefix, name, s.suffix)
		for i := 0; i < len(s.labels); i += 2 {
			fmt.Fprintf(p, "%c%s=\"%s\"", "{,"[min(i, 1)], s.labels[i], escapeLabel(s.labels[i+1]))
		}
		if len(s.labels) > 0 {
			p.WriteByte('}')
		}
		fmt.Fprintf(p, " %s\n", s.value)
	}
}

// escapeLabel returns the value of a label as the format wants it.
func escapeLabel(value string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(value)
}

// of returns a sample of a whole number with labels by name and value.
func of(n uint64, labels ...string) sample {
	return sample{labels: labels, value: strconv.FormatUint(n, 10)}
}

// fraction returns a sample of any other number.
func fraction(f float64, labels ...string) sample {
	return sample{labels: labels, value: strconv.FormatFloat(f, 'g', -1, 64)}
}

// truth returns 1 or 0.
func truth(yes bool, labels ...string) sample {
	if yes {
		return of(1, labels...)
	}
	return of(0, labels...)
}
