package train

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// output is the directory a run writes to.
type output struct {
	dir     string
	metrics *os.File
	seen    []Metric
}

// newOutput makes the directory. A run that resumes after some passes over the training set goes on with the metrics
// up to there.
func newOutput(dir string, epoch float64) (*output, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("train: output: %w", err)
	}
	o := &output{dir: dir}
	mode := os.O_TRUNC
	if epoch > 0 {
		mode = os.O_APPEND
	}
	var err error
	if o.metrics, err = os.OpenFile(o.path("metrics.jsonl"), os.O_CREATE|os.O_RDWR|mode, 0o644); err == nil && epoch > 0 {
		err = o.recall(func(m Metric) bool { return m.Epoch <= epoch })
	}
	if err != nil {
		return nil, fmt.Errorf("train: output: %w", err)
	}
	return o, nil
}

func (o *output) path(name string) string { return filepath.Join(o.dir, name) }

// recall reads the metrics in the file, for the curve, as long as they stay. It cuts off the first line that does
// not, or that was not written whole, and all that follow: their steps are done again.
func (o *output) recall(stays func(Metric) bool) error {
	info, err := o.metrics.Stat()
	if err == nil {
		_, err = o.metrics.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	o.seen = nil
	whole := int64(0) // bytes, to the end of the last line that is good
	for lines := bufio.NewReader(o.metrics); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF { // not taken for the end: that would cut off all that follows
			return err
		}
		var m Metric
		if err != nil || json.Unmarshal(line, &m) != nil || !stays(m) {
			break
		}
		o.seen = append(o.seen, m)
		whole += int64(len(line))
	}
	if whole == info.Size() {
		return nil
	}
	return o.metrics.Truncate(whole)
}

func (o *output) metric(m Metric) error {
	o.seen = append(o.seen, m)
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("train: metrics: %w", err)
	}
	if _, err := o.metrics.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("train: metrics: %w", err)
	}
	return nil
}

// close ends the metrics and draws the curve.
func (o *output) close(r *Result) error {
	if err := o.metrics.Close(); err != nil {
		return fmt.Errorf("train: metrics: %w", err)
	}
	title := fmt.Sprintf("%s on %s, %s, %d ps, %d workers", r.Model, r.Data, r.Mode, r.PS, r.Workers)
	return replaceFile(o.path("curve.svg"), func(w io.Writer) error { return drawCurve(w, title, o.seen) })
}

func (o *output) result(r *Result) error {
	return replaceFile(o.path("result.json"), func(w io.Writer) error { _, err := w.Write(r.JSON()); return err })
}

// writeModel writes the parameters by name, what features are multiplied by
// before they enter the model, and the classes' names.
func writeModel[F Float](path string, m Model[F], params []F, d *Dataset, r *Result) error {
	tensors := []namedTensor{tensor("input.scale", d.Scale)}
	for _, t := range m.Tensors() {
		tensors = append(tensors, tensor(t.Name, params[t.Offset:t.Offset+t.Len()], t.Shape...))
	}
	return writeTensors(path, map[string]string{
		"form":          "fisterra.model/1",
		"model":         r.Model,
		"data":          r.Data,
		"labels":        strings.Join(d.Labels, ","),
		"test_accuracy": fmt.Sprintf("%.4f", r.TestAccuracy),
	}, tensors)
}
