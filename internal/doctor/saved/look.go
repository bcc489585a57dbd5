package saved

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
)

// Look reports on a directory that Save has written, or that somebody has put such outputs into by
// hand, as host.Run does on a machine. An error says what the directory lacks.
func Look(dir string, cfg host.Config) (doctor.Report, error) {
	r := doctor.Report{Title: "doctor", Device: cfg.Device}
	st, err := os.Stat(dir)
	switch {
	case err != nil:
		return r, fmt.Errorf("look at what was saved: %w", err)
	case !st.IsDir():
		return r, fmt.Errorf("look at what was saved: %s is no directory", dir)
	}
	texts, names := map[string]string{}, []string(nil)
	for _, o := range outputs() {
		names = append(names, o.file)
		text, err := os.ReadFile(filepath.Join(dir, o.file))
		switch {
		case err == nil:
			texts[o.file] = string(text)
		case !os.IsNotExist(err):
			return r, fmt.Errorf("look at what was saved: %w", err)
		}
	}
	hasFiles := false
	for _, top := range []string{"sys", "proc"} {
		_, err := os.Stat(filepath.Join(dir, top))
		hasFiles = hasFiles || err == nil
	}
	if !hasFiles && len(texts) == 0 {
		return r, fmt.Errorf("look at what was saved: %s has neither sys and proc nor any of %s: "+
			"\"rdma-netstack doctor --save DIR\" makes such a directory", dir,
			strings.Join(names, ", "))
	}
	if hasFiles {
		cfg.Root = dir
		if cfg.ESwitchMode == nil {
			cfg.ESwitchMode = func(string) (string, error) {
				return wordAfter(texts[eswitchFile], "mode"), nil
			}
		}
		r = host.Run(cfg)
	}
	for _, o := range outputs() {
		if text, has := texts[o.file]; has && o.look != nil {
			r.Results = append(r.Results, o.judge(text)...)
		}
	}
	return r, nil
}

// judge returns the results of one output: what was found, or that it was nothing.
func (o *output) judge(text string) []doctor.Result {
	found, said := o.look(text)
	if said == "" {
		return []doctor.Result{{Check: o.name, State: doctor.Skipped,
			Saw: o.file + " has no line as " + o.name + " prints them"}}
	}
	if len(found) == 0 {
		return []doctor.Result{{Check: o.name, State: doctor.OK, Saw: said}}
	}
	for i := range found {
		found[i].Check = o.name
	}
	return found
}
