package diagnose

import (
	"cmp"
	"slices"
)

// Finding describes one thing that is wrong, or slows a server down.
type Finding struct {
	Name string `json:"name"`
	// Cost estimates what it costs, so that findings can be compared: 100 stands for a server that
	// is of no use to its clients, 1 for a hundredth of its processors or of its clients' time.
	Cost     float64 `json:"cost"`
	Evidence string  `json:"evidence"`
	Cause    string  `json:"cause"`
	Cure     string  `json:"cure"`
}

// Kind describes what Find may find: what it looks for, and what is said of it.
type Kind struct{ Name, Cause, Cure string }

// Kinds lists all that Find may find.
func Kinds() (all []Kind) {
	for _, r := range rules() {
		all = append(all, r.Kind)
	}
	return all
}

// Find says what was wrong between two snapshots of a server, what costs most first. Nothing is
// found that there are no numbers for: two snapshots of ten seconds or more tell most.
func Find(before, after Snapshot) []Finding {
	o := observe(before, after)
	all := []Finding{}
	for _, r := range rules() {
		if cost, evidence := r.look(o); cost > 0 {
			all = append(all, Finding{r.Name, cost, evidence, r.Cause, r.Cure})
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(b.Cost, a.Cost) })
	return all
}

// rule looks for one kind. look returns what it costs, 0 if it is not there.
type rule struct {
	Kind
	look func(*observation) (cost float64, evidence string)
}

func rules() []rule {
	return slices.Concat(receiveRules(), clientRules(), resentRules(), settingRules(),
		machineRules())
}

// least gives the events below which nothing is said: a few of them happen anywhere.
const least = 10

// costOfLoss returns what it costs that a share of frames, requests or segments is lost. Each is
// sent again only after a round trip or a timeout, and slows its connection down: of 1 in 100 half
// of the speed is taken to remain.
func costOfLoss(share float64) float64 { return 100 * share / (share + 0.01) }
