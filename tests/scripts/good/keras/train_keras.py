import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(0)
x = rng.normal(size=(512, 20)).astype("float32")
y = (x[:, :3].sum(axis=1) > 0).astype("int32")

model = keras.Sequential(
    [keras.Input((20,)), layers.Dense(32, activation="relu"), layers.Dropout(0.2), layers.Dense(2, activation="softmax")]
)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.summary()
callbacks = [
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    keras.callbacks.CSVLogger("history.csv"),
    keras.callbacks.EarlyStopping(patience=5),
]
model.fit(x, y, batch_size=16, epochs=30, validation_split=0.2, callbacks=callbacks, verbose=2)
