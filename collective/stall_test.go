package collective

import (
	"slices"
	"testing"
	"time"
)

// What the look-out does about a rank that is waited for, second by second: it asks after one, again after twice as
// long each time, and for a report, which waits for the answer to that.
func TestPatience(t *testing.T) {
	const never, always = -1, 0
	for _, k := range []struct {
		name       string
		stallAfter time.Duration // in seconds
		answers    int           // seconds after each question; never
		want       string        // of each second: '.', a question '?', a report '!'
	}{
		{"answered at once", 3, always, ".???!.??!."},
		{"not answered", 3, never, ".???!.??!."},
		{"answered late", 4, 3, ".??.?!..??"},
		{"asked for a report at first", 1, always, ".?!?!?!?!?"},
		{"no reports", -1, always, ".??.?...?."},
	} {
		start := time.Now()
		p := patience{since: start}
		got, answerAt := "", -1
		for second := range len(k.want) {
			if second == answerAt {
				p.answer = "busy"
			}
			now := start.Add(time.Duration(second) * time.Second)
			switch ask, report := p.look(now, k.stallAfter*time.Second); {
			case report:
				got += "!"
			case ask:
				got += "?"
				if k.answers != never {
					answerAt = second + max(1, k.answers)
				}
			default:
				got += "."
			}
		}
		if got != k.want {
			t.Errorf("%s: %s, want %s", k.name, got, k.want)
		}
	}
}

// A report that is wanted within the second after which a rank is asked is there when it is answered.
func TestPatienceIsAsShortAsWanted(t *testing.T) {
	const stallAfter = askAfter / 10
	start := time.Now()
	p := patience{since: start}
	for _, k := range []struct {
		at          time.Duration
		answer      string
		ask, report bool
	}{
		{stallAfter - 1, "", false, false},
		{stallAfter, "", true, false},
		{stallAfter + 1, "busy", false, true},
		{2 * stallAfter, "", false, false},
		{2*stallAfter + 1, "", true, false},
	} {
		p.answer += k.answer
		if ask, report := p.look(start.Add(k.at), stallAfter); ask != k.ask || report != k.report {
			t.Errorf("after %v: asked %v, reported %v; want %v, %v", k.at, ask, report, k.ask, k.report)
		}
	}
}

// Where nobody knows who is waited for, as when the system's MPI library does it, a report waits for no answer.
func TestPatienceWithTheMute(t *testing.T) {
	const stallAfter = askAfter / 10
	start := time.Now()
	p := patience{since: start, mute: true}
	for i, want := range []bool{false, true, true, true} {
		if ask, report := p.look(start.Add(time.Duration(i)*stallAfter), stallAfter); ask != want || report != want {
			t.Errorf("after %d times the wait: asked %v, reported %v; want %v for both", i, ask, report, want)
		}
	}
}

// Then all the others are asked, one after the other.
func TestOthersAreAskedInTurn(t *testing.T) {
	s := &state{rank: 2, size: 4}
	var got []int
	for asks := 1; asks <= 4; asks++ {
		got = append(got, s.whomToAsk(glimpse{peer: nobody, inLibrary: true}, patience{asks: asks}))
	}
	if want := []int{3, 0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("asked %v, want %v", got, want)
	}
}

// An answer counts for the rank that was asked, and for the question that it answers.
func TestAnswersAreOfOneRank(t *testing.T) {
	var s state
	w := &s.watch
	w.patience = map[question]patience{{7, 1}: {}, {7, 2}: {}}
	w.answered(question{7, 1}, "busy")
	w.answered(question{8, 1}, "of a collective that is over")
	if w.patience[question{7, 1}].answer != "busy" || w.patience[question{7, 2}].answer != "" || len(w.patience) != 2 {
		t.Errorf("the answer went to %v", w.patience)
	}
}
