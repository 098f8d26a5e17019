// Command linearizability reads a history of operations, one JSON object a line, and says for each
// namespace whether some order of its operations explains every answer. The search is porcupine's.
//
//	linearizability [-timeout 60s] < history.jsonl > verdicts.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	ID      string   `json:"id"`
	Process int      `json:"process"`
	Space   string   `json:"space"`
	Kind    string   `json:"kind"`
	Format  string   `json:"format"`
	Name    string   `json:"name"`
	Version int64    `json:"version"`
	Steps   []action `json:"steps"`
	Output  output   `json:"output"`
	Call    int64    `json:"call"`
	Return  int64    `json:"return"` // 0: it never returned
}

type action struct {
	Do       string `json:"do"`
	Name     string `json:"name"`
	Format   string `json:"format"`
	New      string `json:"new"`
	ID       string `json:"id"`
	Version  int64  `json:"version"`
	End      int64  `json:"end"`
	Value    string `json:"value"`
	Expected string `json:"expected"`
	Snapshot string `json:"snapshot"`
	Property string `json:"property"`
	Item     int64  `json:"item"` // of the trash; its numbers grow
}

type entry struct {
	Version int64  `json:"version"`
	Value   string `json:"value"`
}

type output struct {
	Error      string   `json:"error"`
	Unanswered bool     `json:"unanswered"` // it took effect, though no client was told
	Version    int64    `json:"version"`
	Value      string   `json:"value"`
	Versions   []entry  `json:"versions"`
	Names      []string `json:"names"`
	ID         string   `json:"location"`
	Snapshot   string   `json:"snapshot"`
	Property   string   `json:"property"`
	Count      int64    `json:"count"`
}

func (o *operation) isRead() bool {
	return slices.Contains([]string{"names", "describe", "latest", "list", "load"}, o.Kind)
}

type verdict struct {
	Space      string   `json:"space"`
	Operations int      `json:"operations"`
	Result     string   `json:"result"` // linearizable, not linearizable, undecided
	Unplaced   []string `json:"unplaced,omitempty"`
}

var model = porcupine.Model{
	Init:  func() any { return state{names: map[string]*object{}} },
	Step:  step,
	Equal: equalStates,
}

func judge(space string, history []*operation, timeout time.Duration) verdict {
	operations := make([]porcupine.Operation, 0, len(history))
	for _, op := range history {
		end := op.Return
		if end == 0 {
			end = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{
			ClientId: op.Process, Input: op, Output: op.Output, Call: op.Call, Return: end,
		})
	}
	result := verdict{Space: space, Operations: len(history)}
	switch porcupine.CheckOperationsTimeout(model, operations, timeout) {
	case porcupine.Ok:
		result.Result = "linearizable"
	case porcupine.Unknown:
		result.Result = "undecided"
	default:
		result.Result = "not linearizable"
		result.Unplaced = unplaced(operations, history, timeout)
	}
	return result
}

// Unplaced names the operations that the longest partial order leaves out, earliest first.
func unplaced(operations []porcupine.Operation, history []*operation, timeout time.Duration) []string {
	_, info := porcupine.CheckOperationsVerbose(model, operations, timeout)
	placed := map[int]bool{}
	longest := -1
	for _, partial := range info.PartialLinearizations() {
		for _, order := range partial {
			if len(order) > longest {
				longest = len(order)
				placed = map[int]bool{}
				for _, at := range order {
					placed[at] = true
				}
			}
		}
	}
	var left []*operation
	for at, op := range history {
		if !placed[at] {
			left = append(left, op)
		}
	}
	slices.SortFunc(left, func(a, b *operation) int { return int(a.Call - b.Call) })
	var ids []string
	for _, op := range left[:min(len(left), 5)] {
		ids = append(ids, op.ID)
	}
	return ids
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for one namespace")
	flag.Parse()
	spaces := map[string][]*operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<28)
	for lines.Scan() {
		op := new(operation)
		if err := json.Unmarshal(lines.Bytes(), op); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		spaces[op.Space] = append(spaces[op.Space], op)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var group sync.WaitGroup
	var writing sync.Mutex
	answers := json.NewEncoder(os.Stdout)
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for space, history := range spaces {
		group.Add(1)
		go func() {
			defer group.Done()
			slots <- struct{}{}
			found := judge(space, history, *timeout)
			<-slots
			writing.Lock()
			defer writing.Unlock()
			if err := answers.Encode(found); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
		}()
	}
	group.Wait()
}
