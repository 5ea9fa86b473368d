"""rankgrad export, as it is called."""

import onnxruntime


def test_from_a_run_folder_to_a_file(rankgrad, in_json, trained, folder, tmp_path):
    said = rankgrad("export", trained, "-o", tmp_path / "a.onnx").stdout
    assert "16 raw features in the order of training: 1, 2, 3, ... 16" in said
    assert onnxruntime.InferenceSession(tmp_path / "a.onnx").get_inputs()[0].shape[2] == 16
    found = in_json("export", trained, "-o", tmp_path / "b.onnx", "--data", folder)
    assert found["largest_difference"] < 1e-5 and found["per_item"]


def test_what_is_wrong_is_said(refused, trained, tmp_path):
    (tmp_path / "there.onnx").touch()
    assert "replace it with --overwrite" in refused(
        "export", trained, "-o", tmp_path / "there.onnx"
    )
    assert "does not say the format" in refused("export", trained, "-o", tmp_path / "a.bin")
    assert "distill" in refused("export", trained, "-o", tmp_path / "a.json", "--format", "solr")
    assert "give --data" in refused("export", trained, "-o", tmp_path / "a.onnx", "--fold", 1)
    said = refused("export", trained, "-o", tmp_path / "a.onnx", "--non-negative")
    assert "--non-negative" in said and "the format onnx has no such option" in said
